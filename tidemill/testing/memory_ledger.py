"""`MemoryLedger`: the ledger without a server. Same promises as the one on Redis, tested by the same suite.

Its clock is given, so a test can let leases expire without waiting; waits for a transition use real time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from tidemill.ledger import wire
from tidemill.ledger.api import (
    START_FAILURES_S,
    AgentReport,
    Backlog,
    HeartbeatReply,
    JobPage,
    LogLine,
    Memory,
    PoolState,
    QueuedJob,
    StartFailure,
    Token,
    Transition,
)
from tidemill.ledger.cursors import read_cursor
from tidemill.models import FunctionRecord, Job, JobError, JobState, Placement, PoolSpec, settled_place
from tidemill.testing.memory_jobs import MemoryJobs
from tidemill.testing.memory_state import Agent, Held

_LOG_LINES = 2000
_LOG_LINE_CHARS = 4096
_LOG_LIFE_S = 3600
_IGNORED = 10_000
_JUNK = 1000
_JUNK_BYTES = 4096

Line = TypeVar("Line", Transition, LogLine)


class MemoryLedger(MemoryJobs):
    """The ledger in memory. `clock` gives seconds since 1970; any thread may use it."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        super().__init__(clock)
        self._functions: dict[str, FunctionRecord] = {}
        self._pools: dict[str, PoolSpec] = {}
        self._leases: dict[str, tuple[str, int]] = {}
        self._scaling: dict[str, int] = {}
        self._failures: dict[tuple[str, str], tuple[StartFailure, int]] = {}  # with the time of the last one (us)
        self._ignored: dict[tuple[str, str], tuple[str, float]] = {}
        self._junk: list[dict[str, Any]] = []

    # -- epoch and leader leases ---------------------------------------------------------------------------------
    def epoch(self) -> tuple[int, int] | None:
        return self._epoch

    def begin_epoch(self, epoch: int, sequence: int) -> bool:
        with self._lock:
            if self._epoch is not None and epoch <= self._epoch[0]:
                return False
            self._epoch = (epoch, sequence)
            for state in (JobState.running, JobState.committed):
                for held in self._by_state[state].values():
                    held.lease = 0
            self._failures.clear()
            return True

    def advance(self, epoch: int, sequence: int, *, fence: int | None = None) -> bool:
        with self._lock:
            if self._deposed(fence) or self._epoch is None or self._epoch[0] != epoch:
                return False
            self._epoch = (epoch, max(sequence, self._epoch[1]))
            return True

    def acquire(self, name: str, holder: str, ttl_s: float) -> int | None:
        with self._lock:
            now = self._now()
            who, until = self._leases.get(name, ("", 0))
            if until > now and who != holder:
                return None
            if until <= now:
                self._fences[name] = max(self._fences.get(name, 0) + 1, now // 1000)
            self._leases[name] = (holder, now + wire.micros(ttl_s))
            return self._fences[name]

    def resign(self, name: str, holder: str) -> None:
        with self._lock:
            if self._leases.get(name, ("", 0))[0] == holder:
                del self._leases[name]

    # -- functions and pools -------------------------------------------------------------------------------------
    def put_function(self, record: FunctionRecord, *, fence: int | None = None) -> bool:
        with self._lock:
            if self._deposed(fence):
                return False
            self._forget_starts(record.name)
            self._functions[record.name] = record
            self._version += 1
            return True

    def functions(self) -> dict[str, FunctionRecord]:
        with self._lock:
            return dict(sorted(self._functions.items()))

    def function(self, name: str) -> FunctionRecord | None:
        return self._functions.get(name)

    def remove_function(self, name: str, *, fence: int | None = None) -> None:
        with self._lock:
            if self._deposed(fence):
                return
            self._forget_starts(name)
            if self._functions.pop(name, None) is not None:
                self._version += 1

    def _forget_starts(self, function: str) -> None:
        self._failures = {key: failure for key, failure in self._failures.items() if key[0] != function}

    def put_pool(self, spec: PoolSpec, *, draining: bool | None = None, fence: int | None = None) -> bool:
        with self._lock:
            if self._deposed(fence):
                return False
            if draining:
                self._draining.add(spec.name)
            elif draining is False or spec.name not in self._pools:
                self._draining.discard(spec.name)
            self._pools[spec.name] = spec
            self._version += 1
            return True

    def pools(self) -> dict[str, PoolState]:
        with self._lock:
            return {name: PoolState(spec, name in self._draining) for name, spec in sorted(self._pools.items())}

    def remove_pool(self, name: str, *, fence: int | None = None) -> bool:
        with self._lock:
            if self._deposed(fence) or self._pools.pop(name, None) is None:
                return False
            self._draining.add(name)
            self._version += 1
            return True

    def drain_pool(self, name: str, draining: bool) -> bool:
        with self._lock:
            if name not in self._pools:
                return False
            (self._draining.add if draining else self._draining.discard)(name)
            self._version += 1
            return True

    def version(self) -> int:
        return self._version

    # -- reading -------------------------------------------------------------------------------------------------
    def job(self, job_id: str) -> Job | None:
        with self._lock:
            self._live()
            held = self._jobs.get(job_id)
            return held.job() if held else None

    def jobs(
        self,
        *,
        state: JobState | None = None,
        function: str | None = None,
        since: float | None = None,
        reason: str | None = None,
        owner: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> JobPage:
        at, last = read_cursor(cursor)

        def fits(held: Held) -> bool:
            code = held.end.error.code if held.end and held.end.error and held.state.terminal else None
            return (
                (state is None or held.state == state)
                and (function is None or held.new.function == function)
                and (since is None or held.created >= wire.micros(since))
                and (reason is None or code == reason)
                and (owner is None or held.new.owner == owner)
                and (cursor is None or (held.created, held.new.id) < (int(at), last))
            )

        with self._lock:
            self._live()
            found = sorted(filter(fits, self._jobs.values()), key=lambda h: (h.created, h.new.id), reverse=True)
            page = found[:limit]
            more = len(found) > limit and page
            return JobPage(tuple(h.job() for h in page), f"{page[-1].created}-{page[-1].new.id}" if more else None)

    def counts(self) -> dict[str, dict[JobState, int]]:
        with self._lock:
            self._live()
            found: dict[str, dict[JobState, int]] = {}
            for held in self._jobs.values():
                states = found.setdefault(held.new.function, {})
                states[held.state] = states.get(held.state, 0) + 1
            return found

    def backlog(self, limit: int = 200) -> list[Backlog]:
        with self._lock:
            self._live()
            now = self._now()
            waiting: dict[str, list[Held]] = {}
            for held in self._by_state[JobState.queued].values():
                waiting.setdefault(held.new.function, []).append(held)
            found = []
            for function, jobs in sorted(waiting.items()):
                ready = sorted((h for h in jobs if h.available <= now), key=lambda h: (h.available, h.new.id))
                later = [h.available for h in jobs if h.available > now]
                first = min(later) / 1e6 if later else None
                oldest = tuple(_queued(held) for held in ready[:limit])
                found.append(Backlog(function, len(ready), len(later), first, oldest))
            return found

    def wait(self, job_id: str, timeout_s: float) -> Job | None:
        give_up = time.monotonic() + timeout_s
        with self._changed:
            while True:
                job = self.job(job_id)
                left_s = give_up - time.monotonic()
                if job is None or job.state.terminal or left_s <= 0:
                    return job
                self._changed.wait(left_s)

    def transitions(self, after: str, block_s: float = 0.0, limit: int = 500) -> list[Transition]:
        return self._read(lambda: self._stream, after, block_s, limit)

    def _read(self, lines: Callable[[], list[Line]], after: str, block_s: float, limit: int) -> list[Line]:
        give_up = time.monotonic() + block_s
        with self._changed:
            newest = lines()[-1].position if lines() else "0"
            floor = _order(newest if after == "$" else after)
            while True:
                # From the end: a reader that keeps up looks at few lines.
                found = []
                for line in reversed(lines()):
                    if _order(line.position) <= floor:
                        break
                    found.append(line)
                left_s = give_up - time.monotonic()
                if found or left_s <= 0:
                    return found[::-1][:limit]
                self._changed.wait(left_s)

    def last_position(self) -> str:
        with self._lock:
            return self._stream[-1].position if self._stream else "0"

    def iter_open(self) -> Iterator[Job]:
        with self._lock:
            self._live()
            found = [held.job() for held in self._jobs.values() if not held.state.terminal]
        yield from found

    # -- settled set ---------------------------------------------------------------------------------------------
    def known(self, job_ids: Sequence[str]) -> list[bool]:
        with self._lock:
            if job_ids:
                self._live()
            return [settled_place(job_id) in self._settled or job_id in self._jobs for job_id in job_ids]

    def settle(self, job_ids: Iterable[str]) -> int:
        places = {settled_place(job_id) for job_id in job_ids}
        with self._lock:
            if places:
                self._live()
            new = len(places - self._settled)
            self._settled |= places
            return new

    def unsettle(self, job_ids: Iterable[str], *, fence: int | None = None) -> int:
        with self._lock:
            self._live()
            if self._deposed(fence):
                return 0
            places = {settled_place(job_id) for job_id in job_ids if job_id not in self._jobs}
            dropped = len(places & self._settled)
            self._settled -= places
            return dropped

    # -- agents --------------------------------------------------------------------------------------------------
    def heartbeat(self, report: AgentReport) -> HeartbeatReply:
        with self._lock:
            self._live()
            now = self._now()
            agent = self._agents.setdefault(report.name, Agent(report, now))
            agent.report, agent.seen = report, now
            drain = agent.drain or report.pool in self._draining
            if drain or report.state == "draining":
                self._take_back(report.name, None, "agent_drained", now)
            return HeartbeatReply(dict(agent.wanted or {}), drain, told=agent.wanted is not None)

    def agents(self) -> list[AgentReport]:
        with self._lock:
            self._live()
            found = []
            for name, agent in sorted(self._agents.items(), key=lambda item: (item[1].seen, item[0])):
                running = sum(held.state is JobState.running for held in self._in_hand_of(name))
                released = len(self._released_to(name))
                found.append(replace(agent.report, seen_at=agent.seen / 1e6, released=released, running=running))
            return found

    def set_wanted(self, agent: str, wanted: Mapping[str, int], *, fence: int | None = None) -> bool:
        with self._lock:
            self._live()
            if agent not in self._agents or self._deposed(fence):
                return False
            self._agents[agent].wanted = dict(wanted)
            return True

    def set_grants(
        self,
        function: str,
        grants: Mapping[str, int],
        placement: Placement | None = None,
        *,
        fence: int | None = None,
    ) -> bool:
        with self._lock:
            self._live()
            if self._deposed(fence):
                return False
            self._grants[function] = ({agent: n for agent, n in grants.items() if n > 0}, placement)
            return True

    def set_scaling(self, numbers: Mapping[str, int], *, fence: int | None = None) -> bool:
        with self._lock:
            self._live()
            if self._deposed(fence):
                return False
            self._scaling = dict(numbers)
            return True

    def scaling(self) -> dict[str, int]:
        with self._lock:
            return dict(self._scaling)

    def start_failed(self, function: str, revision: str, error: JobError, permanent: bool) -> int:
        with self._lock:
            self._live()
            old, at = self._failures.get((function, revision), (None, 0))
            number = (old.permanent if old and not self._past(at) else 0) + int(permanent)
            self._failures[function, revision] = StartFailure(function, revision, number, error), self._now()
            return number

    def _past(self, at: int) -> bool:
        return at < self._now() - wire.micros(START_FAILURES_S)

    def start_succeeded(self, function: str, revision: str) -> None:
        with self._lock:
            self._live()
            self._failures.pop((function, revision), None)

    def start_failures(self) -> list[StartFailure]:
        with self._lock:
            return [failure for _, (failure, at) in sorted(self._failures.items()) if not self._past(at)]

    # -- logs, notes for operators -------------------------------------------------------------------------------
    def append_log(self, token: Token, lines: Sequence[tuple[str, str]]) -> bool:
        with self._lock:
            self._live()
            if self._current(token) is None:
                return False
            now, log = self._now(), self._logs[token.job_id]
            for stream, text in lines:
                short = text if len(text) <= _LOG_LINE_CHARS else text[: _LOG_LINE_CHARS - 1] + "…"
                log.append(LogLine(self._position(now), now // 1000 / 1000, stream, short))
            del log[:-_LOG_LINES]
            self._changed.notify_all()
            return True

    def log(self, job_id: str, after: str = "0", block_s: float = 0.0, limit: int = 1000) -> list[LogLine]:
        def lines() -> list[LogLine]:
            held = self._jobs.get(job_id)
            if held is not None and held.done is not None and self._now() > held.done + wire.micros(_LOG_LIFE_S):
                self._logs.pop(job_id, None)
            return self._logs.get(job_id, [])

        return self._read(lines, after, block_s, limit)

    def note_ignored(self, bucket: str, key: str, reason: str) -> None:
        with self._lock:
            old = self._ignored.get((bucket, key))
            if old is not None and old[0] == reason:
                return
            self._ignored.pop((bucket, key), None)
            self._ignored[bucket, key] = (reason, self._now() / 1e6)
            while len(self._ignored) > _IGNORED:
                del self._ignored[next(iter(self._ignored))]

    def ignored(self, limit: int = 1000) -> list[tuple[str, str, str, float]]:
        with self._lock:
            newest = list(self._ignored.items())[::-1][: max(0, limit)]
            return [(bucket, key, reason, at) for (bucket, key), (reason, at) in newest]

    def note_junk(self, source: str, reason: str, body: bytes) -> None:
        shown = body[:_JUNK_BYTES].decode("utf-8", "replace")
        entry = {"source": source, "reason": reason, "body": shown, "size": len(body), "at": self._clock()}
        with self._lock:
            self._junk.insert(0, entry)
            del self._junk[_JUNK:]

    def junk(self, limit: int = 100) -> list[dict[str, Any]]:
        with self._lock:
            return [dict(entry) for entry in self._junk[: max(0, limit)]]

    def memory(self) -> Memory:
        return Memory(used=0, limit=0)

    def ping(self) -> float:
        return 0.0

    def close(self) -> None:
        """There is nothing to close."""


def _order(position: str) -> tuple[int, int]:
    ms, _, number = position.partition("-")
    return int(ms), int(number or 0)


def _queued(held: Held) -> QueuedJob:
    new = held.new
    return QueuedJob(
        new.id,
        new.function,
        new.owner,
        held.submitted / 1e6,
        new.input.size,
        dict(new.params),
        held.attempt,
        held.last_agent,
    )
