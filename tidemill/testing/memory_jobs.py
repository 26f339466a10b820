"""The way of a job in memory: the state machine of the Lua scripts, in Python.

A job carries its state itself, so there is no queue that could disagree with it. Times are whole microseconds of the
given clock, and grow with each call, as they do on a server: that keeps the order of submits.
"""

from __future__ import annotations

import secrets
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tidemill.errors import LedgerUnavailable
from tidemill.ledger import wire
from tidemill.ledger.api import (
    Claim,
    Ended,
    LogLine,
    NewJob,
    Renewal,
    Submitted,
    Swept,
    Token,
    Transition,
)
from tidemill.models import Event, JobError, JobState, Manifest, Placement, Progress, settled_place
from tidemill.testing.memory_state import Agent, Held

_HISTORY = 30
_LINES = 20_000
_UNCLAIMED_US = 2_000_000
_OPEN = (JobState.queued, JobState.released, JobState.running, JobState.committed)
_IN_HAND = (JobState.running, JobState.committed)


class MemoryJobs:
    """Submit, place, claim, end, sweep; the state that the other calls read."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last_us = 0
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._epoch: tuple[int, int] | None = None
        self._fences: dict[str, int] = {}
        self._jobs: dict[str, Held] = {}
        self._by_state: dict[JobState, dict[str, Held]] = {state: {} for state in JobState}
        self._settled: set[tuple[int, int]] = set()
        self._agents: dict[str, Agent] = {}
        self._unclaimed: dict[str, int] = {}
        self._grants: dict[str, tuple[dict[str, int], Placement | None]] = {}
        self._draining: set[str] = set()
        self._version = 0
        self._stream: list[Transition] = []
        self._entries = 0
        self._logs: dict[str, list[LogLine]] = defaultdict(list)

    # -- what the calls share ------------------------------------------------------------------------------------
    def _now(self) -> int:
        self._last_us = max(self._last_us + 1, wire.micros(self._clock()))
        return self._last_us

    def _live(self) -> int:
        if self._epoch is None:
            raise LedgerUnavailable("the ledger holds no epoch yet", code="no_epoch")
        return self._epoch[0]

    def _deposed(self, fence: int | None) -> bool:
        return fence is not None and self._fences.get("placement") != fence

    def _position(self, now: int) -> str:
        self._entries += 1
        return f"{now // 1000}-{self._entries}"

    def _line(self, held: Held, now: int, *, created: bool = False, error: str = "", run_s: float = 0.0) -> None:
        summary = wire.summary_of(held.new.input) if created else ""
        line = Transition(
            self._position(now),
            held.new.id,
            held.new.function,
            held.state,
            now / 1e6,
            held.attempt,
            held.new.generation,
            held.agent,
            summary,
            error,
            created,
            run_s,
        )
        self._stream.append(line)
        del self._stream[:-_LINES]
        self._changed.notify_all()

    def _move(self, held: Held, state: JobState, now: int, *, error: str = "", run_s: float = 0.0) -> None:
        del self._by_state[held.state][held.new.id]
        held.state = state
        self._by_state[state][held.new.id] = held
        self._line(held, now, error=error, run_s=run_s)

    def _remember(
        self, held: Held, now: int, what: str, agent: str | None, detail: str = "", attempt: int | None = None
    ) -> None:
        number = held.attempt if attempt is None else attempt
        held.history.append(Event(at=now / 1e6, what=what, attempt=number, agent=agent, detail=detail or None))
        del held.history[:-_HISTORY]

    def _takes_work(self, name: str) -> bool:
        agent = self._agents.get(name)
        if agent is None or agent.drain or agent.report.state == "draining":
            return False
        return agent.report.pool not in self._draining

    def _released_to(self, agent: str) -> list[Held]:
        mine = (held for held in self._by_state[JobState.released].values() if held.agent == agent)
        return sorted(mine, key=lambda held: held.released or 0)

    def _recheck_unclaimed(self, agent: str) -> None:
        oldest = next(iter(self._released_to(agent)), None)
        if oldest is None:
            self._unclaimed.pop(agent, None)
        else:
            self._unclaimed[agent] = oldest.released or 0

    def _bind(self, held: Held, agent: str, placement: Placement | None, now: int) -> None:
        held.agent, held.pool, held.released = agent, self._agents[agent].report.pool, now
        held.placement = placement
        self._unclaimed.setdefault(agent, now)
        self._move(held, JobState.released, now)

    def _requeue(self, held: Held, now: int, available: int | None = None) -> None:
        agent, was_released = held.agent, held.state is JobState.released
        held.agent = held.pool = held.released = held.started = held.progress = held.by = held.granted = None
        held.last_agent = agent or held.last_agent
        held.available = available or held.submitted
        self._move(held, JobState.queued, now)
        if was_released and agent:
            self._recheck_unclaimed(agent)

    def _take(self, held: Held, by: str, lease_s: float, now: int) -> None:
        agent, before = held.agent, held.state
        held.by, held.epoch, held.nonce, held.look = by, self._live(), secrets.token_hex(8), True
        held.lease, held.granted = now + wire.micros(lease_s), None
        if before not in _IN_HAND:
            held.agent = held.pool = held.released = None
            self._move(held, JobState.running, now)
            if before is JobState.released and agent:
                self._recheck_unclaimed(agent)

    def _claim_of(self, held: Held, look: bool) -> Claim:
        new = held.new
        token = Token(new.id, new.generation, held.epoch, held.attempt, held.nonce or "")
        return Claim(token, held.job(), new.max_attempts, look, held.cancel)

    def _looks_first(self, held: Held) -> bool:
        return held.look or held.attempt > 1 or held.accepted != self._live()

    def _current(self, token: Token) -> Held | None:
        held = self._jobs.get(token.job_id)
        if held is None or held.state not in _IN_HAND or token.epoch != self._live():
            return None
        mine = (held.new.generation, held.epoch, held.attempt, held.nonce)
        return held if mine == (token.generation, token.epoch, token.attempt, token.nonce) else None

    def _take_back(self, agent: str, limit: int | None, why: str, now: int) -> list[str]:
        found = self._released_to(agent)[:limit]
        for held in found:
            self._requeue(held, now)
            self._remember(held, now, why, agent)
        if self._released_to(agent):
            self._unclaimed[agent] = 0
        return [held.new.id for held in found]

    def _in_hand_of(self, agent: str) -> Iterator[Held]:
        for state in _IN_HAND:
            yield from (held for held in self._by_state[state].values() if held.agent == agent and held.by is None)

    def _void_leases(self, agent: str, now: int) -> int:
        found = list(self._in_hand_of(agent))
        for held in found:
            held.lease = now
        return len(found)

    # -- the way of a job ----------------------------------------------------------------------------------------
    def submit(self, job: NewJob, *, version: int | None = None, bell: str = "") -> Submitted:
        place = settled_place(job.id)
        with self._lock:
            epoch, now = self._live(), self._now()
            if version is not None and version != self._version:
                return Submitted(job.id, False, None, job.generation, moved=True)
            old, created = self._jobs.get(job.id), now
            look = job.look_first or (self._epoch is not None and self._epoch[1] == 0)  # the rebuild goes on
            if old is not None:
                if not old.state.terminal or job.generation <= old.new.generation:
                    agent = old.agent if old.state is JobState.released else None
                    return Submitted(job.id, False, old.state, old.new.generation, False, agent)
                created = old.created
                del self._by_state[old.state][job.id]
                self._logs.pop(job.id, None)
            elif place in self._settled:
                if job.generation == 1:
                    return Submitted(job.id, False, None, 1, settled=True)
                look = True
            held = Held(job, created, now, epoch, available=now, look=look)
            chosen = self._granted(job.function, now)
            self._jobs[job.id] = held
            self._by_state[JobState.queued][job.id] = held
            self._line(held, now, created=True)
            if chosen is None:
                return Submitted(job.id, True, JobState.queued, job.generation)
            held.granted, placement = self._grants[job.function]
            self._bind(held, chosen, placement, now)
            return Submitted(job.id, True, JobState.released, job.generation, agent=chosen)

    def _granted(self, function: str, now: int) -> str | None:
        grants, _ = self._grants.get(function, ({}, None))
        waiting = self._by_state[JobState.queued].values()
        if any(held.new.function == function and held.available <= now for held in waiting):
            return None
        able = [(-left, agent) for agent, left in grants.items() if left > 0 and self._takes_work(agent)]
        if not able:
            return None
        chosen = min(able)[1]
        grants[chosen] -= 1
        return chosen

    def _grant_again(self, held: Held) -> None:
        used, held.granted = held.granted, None
        if used is not None and held.agent and used is self._grants[held.new.function][0]:
            used[held.agent] = used.get(held.agent, 0) + 1

    def release(self, job_id: str, agent: str, placement: Placement, *, fence: int | None = None) -> bool:
        with self._lock:
            self._live()
            held, now = self._jobs.get(job_id), self._now()
            if held is None or self._deposed(fence):
                return False
            if held.state is JobState.released and held.agent == agent:
                return True
            if held.state is not JobState.queued or held.cancel or not self._takes_work(agent):
                return False
            self._bind(held, agent, placement, now)
            return True

    def note_placement(self, job_id: str, placement: Placement, *, fence: int | None = None) -> bool:
        with self._lock:
            self._live()
            held = self._by_state[JobState.queued].get(job_id)
            if held is None or self._deposed(fence):
                return False
            held.placement = placement
            return True

    def claim(self, agent: str, limit: int, lease_s: float) -> list[Claim]:
        with self._lock:
            epoch, now = self._live(), self._now()
            if not self._takes_work(agent):
                return []
            claims = []
            for held in self._released_to(agent)[:limit]:
                counted = held.attempt if held.counted == epoch else 0
                look = held.look or counted > 0 or held.accepted != epoch
                held.attempt, held.counted, held.epoch, held.look = counted + 1, epoch, epoch, True
                held.nonce, held.started, held.lease = secrets.token_hex(8), now, now + wire.micros(lease_s)
                self._move(held, JobState.running, now)
                claims.append(replace(self._claim_of(held, look), version=self._version))
            if claims:
                self._recheck_unclaimed(agent)
            return claims

    def seize(self, job_id: str, by: str, lease_s: float, *, fence: int | None = None) -> Claim | None:
        with self._lock:
            self._live()
            held, now = self._jobs.get(job_id), self._now()
            if held is None or self._deposed(fence) or held.state not in (JobState.queued, JobState.released):
                return None
            look = self._looks_first(held)
            self._take(held, by, lease_s, now)
            return self._claim_of(held, look)

    def renew(self, tokens: Sequence[Token], lease_s: float) -> list[Renewal]:
        with self._lock:
            if tokens:
                self._live()
            replies, now = [], self._now()
            for token in tokens:
                held = self._current(token)
                if held is not None:
                    held.lease = now + wire.micros(lease_s)
                replies.append(Renewal(held is not None, held is not None and held.cancel))
            return replies

    def progress(self, token: Token, done: float, total: float | None, unit: str | None) -> bool:
        with self._lock:
            self._live()
            held = self._current(token)
            if held is None or held.state is not JobState.running:
                return False
            held.progress = Progress(done=done, total=total, unit=unit)
            return True

    def commit(self, token: Token, ended: Ended, lease_s: float) -> bool:
        with self._lock:
            self._live()
            held, now = self._current(token), self._now()
            if held is None:
                return False
            held.lease = now + wire.micros(lease_s)
            if held.state is JobState.running:
                held.end = _bounded(ended)
                self._grant_again(held)
                self._move(held, JobState.committed, now)
            return True

    def published(self, token: Token, ended: Ended) -> bool:
        place = settled_place(token.job_id)
        with self._lock:
            self._live()
            held, now = self._current(token), self._now()
            if held is None:
                there = self._jobs.get(token.job_id)
                return there is not None and (there.state, there.new.generation) == (ended.state, token.generation)
            held.end, held.done = _bounded(ended), now
            self._grant_again(held)
            held.nonce, held.by, held.look = None, None, False
            self._settled.add(place)
            self._move(held, JobState(ended.state), now, error=wire.error_line(ended.error), run_s=ended.run_s)
            return True

    def relist(self, manifest: Manifest) -> bool:
        with self._lock:
            epoch, now = self._live(), self._now()
            old, created = self._jobs.get(manifest.job_id), wire.micros(manifest.created_at)
            if old is not None:
                if not old.state.terminal or manifest.generation <= old.new.generation:
                    return False
                created = old.created
                del self._by_state[old.state][manifest.job_id]
                self._logs.pop(manifest.job_id, None)
            new = NewJob(
                manifest.job_id,
                manifest.function,
                manifest.input,
                manifest.revision,
                manifest.params,
                manifest.owner,
                manifest.generation,
            )
            held = Held(new, created, created, epoch, available=created, look=False, attempt=manifest.attempt)
            self._jobs[new.id] = held
            self._by_state[held.state][new.id] = held
            self._line(held, now, created=True)
            held.end, held.done = _bounded(Ended.of(manifest)), wire.micros(manifest.finished_at)
            held.started = None if manifest.started_at is None else wire.micros(manifest.started_at)
            held.pool, held.agent, held.placement = manifest.pool, manifest.agent, manifest.placement
            held.history = list(manifest.history)
            self._settled.add(settled_place(new.id))
            state, error = JobState(manifest.state), wire.error_line(manifest.error)
            self._move(held, state, now, error=error, run_s=manifest.run_s)
            return True

    def give_back(
        self, token: Token, *, delay_s: float = 0.0, count: bool = True, why: str = "", error: JobError | None = None
    ) -> bool:
        with self._lock:
            self._live()
            held, now = self._current(token), self._now()
            if held is None:
                there = self._jobs.get(token.job_id)
                given = there is not None and there.state in (JobState.queued, JobState.released)
                return given and there is not None and _same_life(there, token)
            if held.state is not JobState.running:
                return False
            agent, attempt = held.agent, held.attempt
            if not count and held.by is None and attempt > 0:
                held.attempt = attempt - 1
            used = held.attempt if held.counted == token.epoch else 0
            if held.cancel or used >= held.new.max_attempts:
                held.nonce, held.lease = None, now
            else:
                self._requeue(held, now, now + wire.micros(delay_s) if delay_s > 0 else None)
            detail = ": ".join(part for part in (why, wire.error_line(error)) if part)
            self._remember(held, now, "given_back", agent, detail, attempt)
            return True

    def cancel(self, job_id: str, by: str, lease_s: float) -> tuple[JobState | None, Claim | None]:
        with self._lock:
            self._live()
            held, now = self._jobs.get(job_id), self._now()
            if held is None:
                return None, None
            before = held.state
            if before in (JobState.queued, JobState.released):
                look = self._looks_first(held)
                held.cancel = True
                self._take(held, by, lease_s, now)
                self._remember(held, now, "cancel_requested", None, by)
                return before, self._claim_of(held, look)
            if before is JobState.running and not held.cancel:
                held.cancel = True
                self._remember(held, now, "cancel_requested", held.agent, by)
            return before, None

    def sweep(
        self,
        by: str,
        lease_s: float,
        agent_ttl_s: float,
        limit: int = 200,
        *,
        seized: int | None = None,
        fence: int | None = None,
    ) -> Swept:
        with self._lock:
            epoch, now = self._live(), self._now()
            if self._deposed(fence):
                return Swept()
            requeued: list[str] = []
            exhausted: list[Claim] = []
            unpublished: list[Claim] = []
            in_hand = [held for state in _IN_HAND for held in self._by_state[state].values() if held.lease <= now]
            due = sorted(in_hand, key=lambda held: (held.lease, held.new.id))[:limit]
            hands = limit if seized is None else seized
            for held in due:
                agent = held.agent
                used = held.attempt if held.counted == epoch else 0
                over = held.state is JobState.committed or held.cancel or used >= held.new.max_attempts
                if over and hands == 0:
                    held.lease = now + _UNCLAIMED_US
                    continue
                hands -= over
                if held.state is JobState.committed:
                    self._remember(held, now, "publication_taken_over", agent, by)
                    self._take(held, by, lease_s, now)
                    unpublished.append(self._claim_of(held, True))
                    continue
                if held.nonce:
                    self._remember(held, now, "lease_expired" if held.epoch == epoch else "lease_void", agent)
                if over:
                    self._take(held, by, lease_s, now)
                    exhausted.append(self._claim_of(held, True))
                else:
                    held.nonce = None
                    self._requeue(held, now)
                    requeued.append(held.new.id)
            dead = self._bury(now - wire.micros(agent_ttl_s), limit, now)
            ring, back, left = self._doorbells(limit, now)
            more = len(due) == limit or len(dead) == limit or left
            return Swept((*requeued, *back), tuple(exhausted), tuple(unpublished), tuple(ring), tuple(dead), more)

    def _bury(self, before: int, limit: int, now: int) -> list[str]:
        silent = sorted((agent.seen, name) for name, agent in self._agents.items() if agent.seen <= before)
        dead = [name for _, name in silent[:limit]]
        for name in dead:
            del self._agents[name]
            self._void_leases(name, now)
            if self._released_to(name):
                self._unclaimed[name] = 0
        return dead

    def _doorbells(self, limit: int, now: int) -> tuple[list[str], list[str], bool]:
        late = sorted((since, agent) for agent, since in self._unclaimed.items() if since <= now - _UNCLAIMED_US)
        ring: list[str] = []
        back: list[str] = []
        left = len(late) >= limit
        for _, agent in late[:limit]:
            if self._takes_work(agent):
                ring.append(agent)
                self._unclaimed[agent] = now
            else:
                back += self._take_back(agent, limit - len(back), "agent_gone", now)
                left = left or bool(self._released_to(agent))
        return ring, back, left

    def agent_gone(self, agent: str) -> int:
        with self._lock:
            self._live()
            now = self._now()
            self._agents.pop(agent, None)
            return self._void_leases(agent, now) + len(self._take_back(agent, None, "agent_gone", now))

    def drain_agent(self, agent: str, *, fence: int | None = None) -> bool:
        with self._lock:
            self._live()
            if self._deposed(fence):
                return False
            if agent in self._agents:
                self._agents[agent].drain = True
            self._take_back(agent, None, "agent_drained", self._now())
            return True

    def expire(self, before: float, limit: int = 1000) -> int:
        with self._lock:
            self._live()
            ended = [held for held in self._jobs.values() if held.state.terminal]
            old = [held for held in ended if held.done is not None and held.done < wire.micros(before)]
            old = sorted(old, key=lambda held: held.done or 0)[:limit]
            for held in old:
                del self._jobs[held.new.id]
                del self._by_state[held.state][held.new.id]
                self._logs.pop(held.new.id, None)
            return len(old)


def _bounded(ended: Ended) -> Ended:
    return replace(ended, error=wire.bounded(ended.error) if ended.error else None)


def _same_life(held: Held, token: Token) -> bool:
    return held.new.generation == token.generation and held.nonce == token.nonce
