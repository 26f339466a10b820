"""What placement remembers between plans, kept true by the stream of transitions: bound jobs, activity, grants, times.

Reading the whole ledger for each plan would cost more than the plan. The stream says what changed; the ledger's own
counts of each agent (`AgentReport.released`, `.running`) are the check: a job that we still hold although the ledger
counts fewer is looked up. A new leader replays the stream, so it starts with everything its predecessor knew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tidemill.ledger.api import AgentReport, Transition
from tidemill.models import Job, JobState
from tidemill_placement.core import Estimates, Task

_DOUBT_S = 3.0  # so long the ledger may count fewer jobs than we hold before we ask


@dataclass(slots=True)
class View:
    """Everything remembered. Not thread-safe: one thread applies lines and reads."""

    estimates: Estimates = field(default_factory=Estimates)
    tasks: dict[str, Task] = field(default_factory=dict)
    levels: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    quiet: dict[str, float] = field(default_factory=dict)
    grants: dict[str, dict[str, int]] = field(default_factory=dict)
    fresh: bool = True
    _ours: set[str] = field(default_factory=set)
    _doubt: dict[str, float] = field(default_factory=dict)
    _granted: dict[str, Transition] = field(default_factory=dict)

    def apply(self, lines: Iterable[Transition]) -> None:
        """Take in what happened. Sets `fresh` when a job may be waiting that the last backlog did not have."""
        waiting: set[str] = set()
        for line in lines:
            if line.state is not JobState.released and line.state is not JobState.running:
                self._grant_again(line)
            if line.state is JobState.queued:
                self._end(line)
                waiting.add(line.job_id)
                continue
            waiting.discard(line.job_id)
            if line.state in (JobState.released, JobState.running) and line.agent:
                self._begin(line)
            else:
                self._learn(line)
                self._end(line)
        self.fresh = self.fresh or bool(waiting)

    def released(self, job_id: str) -> None:
        """We are about to release this job: no grant pays for it."""
        self._ours.add(job_id)

    def set_grants(self, function: str, agents: Mapping[str, int]) -> None:
        """The ledger has these grants of a function now, and none of before."""
        self._granted = {job_id: line for job_id, line in self._granted.items() if line.function != function}
        if agents:
            self.grants[function] = dict(agents)
        else:
            self.grants.pop(function, None)

    def not_released(self, job_id: str) -> None:
        self._ours.discard(job_id)

    def wanted(self, agent: str, function: str, before: int, slots: int, now: float) -> None:
        """Runners were asked for: their idle time begins now."""
        levels = self.levels.setdefault(agent, {}).setdefault(function, [])
        for index in range(before, slots):
            if index < len(levels):
                levels[index] = now
            else:
                levels.append(now)

    def look_at(self, reports: Sequence[AgentReport], now: float, ask: Callable[[str], Job | None]) -> None:
        """Compare with what agents and ledger say: forget agents that are gone, mend what we hold wrongly."""
        present = {report.name for report in reports}
        for job_id in [job_id for job_id, task in self.tasks.items() if task.agent not in present]:
            if now - self.tasks[job_id].since > _DOUBT_S:
                del self.tasks[job_id]
        for name in set(self.levels) - present:
            # An agent may still boot while its runners are asked for.
            if max((at for times in self.levels[name].values() for at in times), default=0.0) < now - 600:
                del self.levels[name]
        for name in set(self.quiet) - present:
            del self.quiet[name]
        held: dict[str, int] = {}
        for task in self.tasks.values():
            held[task.agent] = held.get(task.agent, 0) + 1
        for report in reports:
            self._first_look(report, now)
            if held.get(report.name, 0) <= report.released + report.running:
                self._doubt.pop(report.name, None)
            elif now - self._doubt.setdefault(report.name, now) > _DOUBT_S:
                self._mend(report.name, ask)
                del self._doubt[report.name]

    def activity(self, agent: str, now: float) -> Mapping[str, tuple[float, ...]]:
        """Give the agent's levels; those in use have the time now."""
        count: dict[str, int] = {}
        for task in self.tasks.values():
            if task.agent == agent:
                count[task.function] = count.get(task.function, 0) + 1
        found = {}
        for function, times in self.levels.get(agent, {}).items():
            busy = count.get(function, 0)
            found[function] = tuple([now] * min(busy, len(times)) + times[busy:])
        return found

    def quiet_since(self, agent: str, now: float) -> float:
        """Give the last time at which the agent had work (0: never)."""
        if any(task.agent == agent for task in self.tasks.values()):
            return now
        return self.quiet.get(agent, 0.0)

    def _begin(self, line: Transition) -> None:
        agent = line.agent or ""
        running = line.state is JobState.running
        old = self.tasks.get(line.job_id)
        self.tasks[line.job_id] = Task(line.job_id, line.function, agent, running, line.at)
        if not running and old is None:
            if line.job_id in self._ours:
                self._ours.discard(line.job_id)
            elif (left := self.grants.get(line.function, {}).get(agent, 0)) > 0:
                self.grants[line.function][agent] = left - 1
                self._granted[line.job_id] = line
        self._touch(agent, line.function, line.at)

    def _grant_again(self, line: Transition) -> None:
        """As the ledger does: a job that its agent committed, or ended at once, gives back the grant that it used."""
        used = self._granted.pop(line.job_id, None)
        ended = line.state is JobState.committed or line.state.terminal
        if used is not None and ended and used.agent and used.agent == line.agent and line.function in self.grants:
            left = self.grants[line.function]
            left[used.agent] = left.get(used.agent, 0) + 1

    def _end(self, line: Transition) -> None:
        if (task := self.tasks.pop(line.job_id, None)) is not None:
            self._touch(task.agent, task.function, line.at, ended=1)

    def _touch(self, agent: str, function: str, at: float, ended: int = 0) -> None:
        same = sum(t.agent == agent and t.function == function for t in self.tasks.values()) + ended
        self.wanted(agent, function, 0, same, at)
        self.quiet[agent] = max(self.quiet.get(agent, 0.0), at)

    def _learn(self, line: Transition) -> None:
        if line.state is JobState.succeeded and line.run_s > 0 and line.agent:
            self.estimates.observe_run(line.function, pool_of(line.agent), line.run_s)

    def _first_look(self, report: AgentReport, now: float) -> None:
        levels = self.levels.setdefault(report.name, {})
        for runner in report.runners:
            if runner.function not in levels:
                levels[runner.function] = [report.seen_at - runner.idle_s] * runner.slots
        self.quiet.setdefault(report.name, min(now, report.seen_at - report.idle_s))

    def _mend(self, agent: str, ask: Callable[[str], Job | None]) -> None:
        for job_id in [job_id for job_id, task in self.tasks.items() if task.agent == agent]:
            job = ask(job_id)
            if job is None or job.agent != agent or job.state not in (JobState.released, JobState.running):
                self.tasks.pop(job_id, None)


def pool_of(agent: str) -> str:
    """Give the pool that an agent's name tells."""
    return agent.rpartition("-")[0] or agent
