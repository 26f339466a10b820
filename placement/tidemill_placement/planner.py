"""One turn of the loop: read the ledger, let the core decide, carry it out.

Little is read when little happens: agents and the version of the specs at each turn, the backlog only while something
may wait. What is written is only what changed. In this order: wanted runners before the jobs that need them; grants
before agents stop; ends of impossible jobs beside it, in threads: no turn waits for the store. None is ended while the
ledger is being rebuilt: it lacks pools and functions then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial

import structlog

from tidemill.errors import TidemillError
from tidemill.failpoints import failpoint
from tidemill.ledger.api import AgentReport, Backlog, Ledger, StartFailure, Transition
from tidemill.models import FunctionRecord, Placement, PoolSpec
from tidemill.record import Record, keys
from tidemill_placement.core import Agent, Plan, Pool, Queue, Release, Rules, Runner, Waiting, World, plan
from tidemill_placement.crew import Crew
from tidemill_placement.endings import Endings
from tidemill_placement.lead import Lead
from tidemill_placement.servertime import ServerTime
from tidemill_placement.sweeper import Bell
from tidemill_placement.view import View

_BACKLOG = 200
_FULL_READ_S = 5.0  # so often the backlog is read although nothing was heard of
_LOOK_S = 1.0  # so often processes are looked at although none starts, stops, comes or goes
_IDLE_LOOK_S = 15.0  # the same while no agent is known
_FAILURES_S = 1.0
_PERMANENT_STARTS = 3
_NOTE_AFTER_S = 0.5
_NOTES_AT_ONCE = 10
_NOTES_KEPT = 5_000
_ENDS_AT_ONCE = 100
_EXISTS_S = 1.0  # so long a function that the bucket has is not asked for again; its jobs leave room to other ends
_LONGEST_FIRST_LOAD_S = 10.0  # a first load may build an environment, which the next ones do not
_SOON_S = 0.2
_BUSY_S = 0.5  # jobs wait and nothing else is going on; less than `Rules.ahead_s`, so that no slot runs dry
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Turn:
    """What a turn did. `again_s`: look again after this long at the latest."""

    again_s: float
    released: int
    waiting: int


class Planner:
    """Plans, turn by turn."""

    def __init__(
        self,
        ledger: Ledger,
        record: Record,
        bell: Bell,
        endings: Endings,
        crew: Crew,
        workers: Executor,
        rules: Rules,
        tick_s: float,
        clock: ServerTime,
        lead: Lead | None = None,
    ) -> None:
        self._ledger = ledger
        self._record = record
        self._bell = bell
        self._endings = endings
        self._crew = crew
        self._workers = workers
        self._rules = rules
        self._tick_s = tick_s
        self._clock = clock
        self._lead = lead or Lead()
        self._fence: int | None = None
        self._one_at_a_time = threading.Lock()
        self.view = View()
        self.reset()

    def reset(self) -> None:
        """Forget everything but what was learned: the ledger is another one, or we lead anew."""
        with self._one_at_a_time:
            self._forget()

    def _forget(self) -> None:
        self.view = View(self.view.estimates)
        self._version = -1
        self._functions: dict[str, FunctionRecord] = {}
        self._pools: dict[str, tuple[Pool, bool]] = {}
        self._wanted: dict[str, Mapping[str, int]] = {}
        self._scaling: Mapping[str, int] | None = None
        self._seen: dict[str, str] = {}
        self._drained: set[str] = set()
        self._loading: dict[tuple[str, str], float] = {}
        self._noted: dict[str, str] = {}
        self._ending: set[str] = set()
        self._existed_at: dict[str, float] = {}  # functions that are missing here, and not in the bucket
        self._failures: dict[tuple[str, str], StartFailure] = {}
        self._complete_now: bool | None = None  # as this turn has found it
        self._failures_at = self._backlog_at = self._looked_at = 0.0
        self._backlog_due = 0.0

    def turn(self, lines: Iterable[Transition]) -> Turn:
        """Take in what happened, decide, and do it.

        Raises:
            LedgerUnavailable: what was done is done, what was not is decided anew in the next turn.
        """
        with self._one_at_a_time:
            return self._turn(lines)

    def _turn(self, lines: Iterable[Transition]) -> Turn:
        self._fence = self._lead.fence  # of one turn: one that was begun under an old lease is refused to its end
        self._complete_now = None
        self.view.apply(lines)
        now = self._clock.now()
        self._read_specs()
        reports = self._ledger.agents()
        self._look_at_agents(reports, now)
        backlog = self._read_backlog(now)
        world = self._world(now, reports, self._sort_out(backlog, now))
        decided = plan(world)
        self._carry_out(decided, reports, world)
        waiting = sum(queue.ready for queue in backlog)
        return Turn(self._again_s(now, backlog), len(decided.releases), waiting)

    # -- reading -------------------------------------------------------------------------------------------------
    def _read_specs(self) -> None:
        version = self._ledger.version()
        if version == self._version:
            return
        self._functions = {n: r for n, r in self._ledger.functions().items() if r.deleted_at is None}
        self._pools = {}
        for name, state in self._ledger.pools().items():
            serves = self._crew.serves(state.spec)
            self._pools[name] = (Pool(state.spec, state.draining, serves), serves)
        self._version = version

    def _look_at_agents(self, reports: Sequence[AgentReport], now: float) -> None:
        self.view.look_at(reports, now, self._ledger.job)
        names = {report.name: report.pool for report in reports}
        alive = bool(names or self._seen or self._crew.managed)
        moves = self._crew.stirring or names.keys() != self._crew.reported
        if moves or now - self._looked_at > (_LOOK_S if alive else _IDLE_LOOK_S):
            self._looked_at = now
            specs = {name: pool.spec for name, (pool, _) in self._pools.items()}
            for pool, seconds in self._crew.observe(specs, reports, now, self._boot_s):
                self.view.estimates.observe_start(pool, seconds)
        for name in self._seen.keys() - names.keys() - self._crew.managed.keys():
            self._bell.forget(self._seen.pop(name), name)
        self._seen |= names
        self._drained &= names.keys()
        for name in self._wanted.keys() - names.keys():
            del self._wanted[name]
        self._learn_loads(reports, now)

    def _boot_s(self, pool: str) -> float:
        return self.view.estimates.start_s(self._pools[pool][0].spec)

    def _learn_loads(self, reports: Sequence[AgentReport], now: float) -> None:
        estimates, loading = self.view.estimates, {}
        for report in reports:
            for runner in report.runners:
                key = (report.name, runner.function)
                if runner.state == "starting":
                    loading[key] = self._loading.get(key, now)
                elif runner.state == "ready" and key in self._loading:
                    estimates.observe_load(runner.function, min(now - self._loading[key], _LONGEST_FIRST_LOAD_S))
        self._loading = loading

    def _read_backlog(self, now: float) -> list[Backlog]:
        if not self.view.fresh and now < self._backlog_due and now - self._backlog_at < _FULL_READ_S:
            return []
        backlog = self._ledger.backlog(_BACKLOG)
        self._backlog_at = now
        self.view.fresh = any(queue.ready for queue in backlog)
        self._backlog_due = min((q.next_delayed_at for q in backlog if q.next_delayed_at), default=float("inf"))
        return backlog

    def _again_s(self, now: float, backlog: Sequence[Backlog]) -> float:
        if self._crew.stirring:
            return min(_SOON_S, self._tick_s)
        if any(queue.ready for queue in backlog):
            return min(_BUSY_S, self._tick_s)
        return max(0.01, min(self._tick_s, self._backlog_due - now))

    # -- from the ledger's values to the core's ------------------------------------------------------------------
    def _world(self, now: float, reports: Sequence[AgentReport], backlog: Sequence[Backlog]) -> World:
        pools = {
            name: Pool(pool.spec, pool.draining, serves, self._crew.trouble(name, now))
            for name, (pool, serves) in self._pools.items()
        }
        agents = [self._agent(report, now) for report in reports]
        agents += [
            Agent(b.name, b.pool, self._pools[b.pool][0].spec.slots, "booting", b.since)
            for b in self._crew.booting.values()
            if b.pool in self._pools
        ]
        queues = tuple(
            Queue(
                queue.function,
                queue.ready,
                tuple(
                    Waiting(job.id, queue.function, job.owner, job.created_at, job.size, job.attempt)
                    for job in queue.jobs
                    if job.id not in self._ending
                ),
            )
            for queue in backlog
        )
        tasks = tuple(self.view.tasks.values())
        return World(now, self._functions, pools, tuple(agents), queues, tasks, self.view.estimates, self._rules)

    def _agent(self, report: AgentReport, now: float) -> Agent:
        leaving = report.state == "draining" or report.name in self._drained or report.name in self._crew.stopping()
        return Agent(
            name=report.name,
            pool=report.pool,
            slots=report.slots,
            state="draining" if leaving else "booting" if report.state == "starting" else "ready",
            since=report.started_at,
            quiet_since=self.view.quiet_since(report.name, now),
            released=report.released,
            running=report.running,
            runners=tuple(Runner(r.function, r.revision, r.slots) for r in report.runners if r.state != "failed"),
            levels=self.view.activity(report.name, now),
            managed=report.name in self._crew.managed,
        )

    # -- jobs that shall not run ---------------------------------------------------------------------------------
    def _sort_out(self, backlog: Sequence[Backlog], now: float) -> list[Backlog]:
        """Take out the queues whose jobs are ended here: functions that are gone, or cannot start."""
        # A verdict that ends jobs is read after them: a deploy in between has lifted it.
        meant = any(self._verdict(queue) for queue in backlog)
        if meant or (backlog and now - self._failures_at > _FAILURES_S):
            self._failures_at = now
            found = self._ledger.start_failures()
            self._failures = {(f.function, f.revision): f for f in found if f.permanent >= _PERMANENT_STARTS}
        rest = []
        for queue in backlog:
            record = self._functions.get(queue.function)
            failure = self._verdict(queue)
            if record is None:
                self._end_deleted(queue)
            elif failure is not None:
                for job in queue.jobs:
                    self._end(job.id, partial(self._endings.start_failed, job.id, failure.error, record))
            else:
                rest.append(queue)
        return rest

    def _verdict(self, queue: Backlog) -> StartFailure | None:
        record = self._functions.get(queue.function)
        return self._failures.get((queue.function, record.revision)) if record is not None else None

    def _end_deleted(self, queue: Backlog) -> None:
        """The bucket has the last word: after a loss of Redis its functions are missing here for a moment."""
        if self._clock.now() - self._existed_at.get(queue.function, 0.0) < _EXISTS_S:
            return
        unsure = _Once(partial(self._may_exist, queue.function))
        for job in queue.jobs:
            end = partial(self._endings.function_deleted, job.id, queue.function)
            self._end(job.id, partial(_unless, unsure, end))

    def _may_exist(self, function: str) -> bool:
        try:
            stored = self._record.get_function(function)
            exists = stored is not None and stored.deleted_at is None
        except TidemillError as error:  # also a damaged record: its jobs wait until somebody has mended it
            log.warning("function.unknown", function=function, error=str(error))
            exists = True
        if exists:
            self._existed_at[function] = self._clock.now()
        return exists

    def _end(self, job_id: str, work: Callable[[], object]) -> None:
        """End a job in a thread, unless that is on its way already."""
        if job_id in self._ending or len(self._ending) >= _ENDS_AT_ONCE or not self._may_end():
            return
        self._ending.add(job_id)
        self._workers.submit(work).add_done_callback(partial(_ended, self._ending, job_id))

    def _may_end(self) -> bool:
        """Whether the ledger is complete, asked once a turn and only when something is to end."""
        if self._complete_now is None:
            epoch = self._ledger.epoch()
            self._complete_now = epoch is not None and epoch[1] > 0
        return self._complete_now

    def _lacks_pools(self, here: Mapping[str, PoolSpec]) -> bool:
        """Whether the bucket has pools that are not here, or damaged ones: an older copy of Redis may not be known as
        such yet."""
        try:
            stored = self._record.pools()
            pages = self._record.store.pages(self._record.bucket, keys.POOLS)
            damaged = len(stored) != sum(map(len, pages))
        except TidemillError as error:
            log.warning("pools.unknown", error=str(error))
            return True
        return damaged or any(here.get(pool.spec.name) != pool.spec for pool in stored)

    # -- doing ---------------------------------------------------------------------------------------------------
    def _carry_out(self, decided: Plan, reports: Sequence[AgentReport], world: World) -> None:
        by_name = {report.name: report for report in reports}
        for name, wanted in decided.wanted.items():
            if name in by_name and self._wanted.get(name) != wanted:
                self._set_wanted(name, wanted, world.now)
        self._set_grants(decided)
        self._release(decided.releases, by_name)
        for name in decided.stops:
            if name not in self._drained:
                if not self._ledger.drain_agent(name, fence=self._fence):
                    continue  # another one leads, and decides whether it stops
                self._drained.add(name)
            self._crew.stop(name, world.now)
        for pool, count in decided.starts.items():
            self._crew.start(world.pools[pool].spec, count, world.now, partial(self._tell_scaling, decided))
        lacks = _Once(partial(self._lacks_pools, {name: pool.spec for name, pool in world.pools.items()}))
        for item in decided.impossible[:_ENDS_AT_ONCE]:
            record = world.functions.get(item.function)
            end = partial(self._endings.no_capacity, item.job_id, item.reason, item.placement, record)
            self._end(item.job_id, partial(_unless, lacks, end))
        self._note(decided, world)
        if decided.scaling != self._scaling:
            self._tell_scaling(decided)

    def _tell_scaling(self, decided: Plan) -> bool:
        """Give whether we lead still: the ledger takes it from no other."""
        done = self._ledger.set_scaling(decided.scaling, fence=self._fence)
        self._scaling = decided.scaling if done else None
        return done

    def _set_wanted(self, name: str, wanted: Mapping[str, int], now: float) -> None:
        before = self._wanted.get(name, {})
        if not self._ledger.set_wanted(name, wanted, fence=self._fence):
            return
        self._wanted[name] = wanted
        for key, slots in wanted.items():
            if slots > before.get(key, 0):
                self.view.wanted(name, key.partition("@")[0], before.get(key, 0), slots, now)

    def _set_grants(self, decided: Plan) -> None:
        for function in sorted({*self.view.grants, *decided.grants}):
            grant = decided.grants.get(function)
            agents = dict(grant.agents) if grant is not None else {}
            left = {agent: n for agent, n in self.view.grants.get(function, {}).items() if n > 0}
            placement = grant.placement if grant is not None else None
            if agents != left and self._ledger.set_grants(function, agents, placement, fence=self._fence):
                self.view.set_grants(function, agents)

    def _release(self, releases: Sequence[Release], agents: Mapping[str, AgentReport]) -> None:
        sent: dict[str, list[Release]] = {}
        for release in releases:
            self.view.released(release.job_id)
            if self._ledger.release(release.job_id, release.agent, release.placement, fence=self._fence):
                sent.setdefault(release.agent, []).append(release)
                self._noted.pop(release.job_id, None)
            else:
                self.view.not_released(release.job_id)
        for name, group in sent.items():
            agent = agents[name]
            failpoint("plan.released")
            # One ring for each slot that sleeps; at least one, for a busy one may fall asleep just now.
            for release in group[: max(1, agent.slots - agent.running)]:
                self._bell.ring(agent.pool, name, release.job_id, release.function)

    def _note(self, decided: Plan, world: World) -> None:
        """Tell waiting jobs why, again only when the pool or an exclusion is another one."""
        created = {job.id: job.created_at for queue in world.backlog for job in queue.jobs}
        told = 0
        for job_id, placement in decided.notes:
            if told >= _NOTES_AT_ONCE or world.now - created[job_id] < _NOTE_AFTER_S:
                continue
            gist = _gist(placement)
            if self._noted.get(job_id) != gist:
                if len(self._noted) > _NOTES_KEPT:
                    self._noted.clear()
                self._noted[job_id] = gist
                self._ledger.note_placement(job_id, placement, fence=self._fence)
                told += 1


class _Once:
    """Asks at most once, when the first of several threads wants to know; the others wait for that answer."""

    def __init__(self, ask: Callable[[], bool]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._answer: bool | None = None

    def __call__(self) -> bool:
        with self._lock:
            if self._answer is None:
                self._answer = self._ask()
            return self._answer


def _unless(unsure: Callable[[], bool], end: Callable[[], object]) -> None:
    if not unsure():
        end()


def _ended(ending: set[str], job_id: str, future: Future[object]) -> None:
    ending.discard(job_id)
    if future.cancelled():
        return  # the service ends
    if (error := future.exception()) is not None:
        # The sweep finds the job again when its lease is over.
        log.warning("job.end_failed", job_id=job_id, error=str(error), kind=type(error).__name__)


def _gist(placement: Placement) -> str:
    out = "|".join(f"{c.pool}:{c.excluded_because}" for c in placement.candidates if c.excluded_because)
    return f"{placement.pool}|{placement.reason.split('(', 1)[0]}|{out}"
