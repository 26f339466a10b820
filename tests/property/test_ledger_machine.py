"""Random histories of the ledger. One machine drives the twin alone, with clock jumps; another drives the twin and a
real Valkey side by side and compares each reply, so that the twin is worth what it says.

Times are either nothing or very long (a lease of 0 s has ended at once), so the real server needs no waiting.
"""

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.contract.ledger.world import FakeClock
from tidemill.ledger import connect
from tidemill.ledger.api import AgentReport, Claim, Ended, Ledger, NewJob, Token
from tidemill.ledger.redis_ledger import RedisLedger
from tidemill.models import Job, JobError, JobInput, JobState, Manifest, Placement, object_job_id
from tidemill.testing import MemoryLedger

LONG_S = 3600.0
NUMBERS = st.integers(0, 3)
AGENTS = st.sampled_from(["gpu-00000a", "gpu-00000b"])
LEASES = st.sampled_from([0.0, LONG_S])
WAY = ("released", "running", "committed", "published")
BACK = st.sampled_from([0, 0, 0, 1, 2, 5])
STATES = st.sampled_from(["succeeded", "failed", "cancelled"])
FUNCTIONS = ("ocr", "thumbs")


def job_id(number: int) -> str:
    return object_job_id(FUNCTIONS[number % 2], "local", "scans", f"{number}", "e", 1, 1)


def plain(value: Any) -> Any:
    """A reply without what two ledgers may differ in: times, nonces, positions."""
    if isinstance(value, Job):
        return plain(value.model_dump())
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items() if not str(key).endswith("_at") and key != "at"}
    if is_dataclass(value) and not isinstance(value, type):
        return plain({f.name: getattr(value, f.name) for f in fields(value) if f.name not in ("nonce", "position")})
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value


class LedgerMachine(RuleBasedStateMachine):
    """Every rule is one call on every ledger; their replies must agree."""

    make: Callable[[], list[Ledger]]
    clock: FakeClock | None = None

    @initialize()
    def begin(self) -> None:
        self.ledgers = type(self).make()
        self.epoch = 1
        self.accepted: dict[str, int] = {}  # id -> highest generation accepted
        self.ended: dict[tuple[str, int], JobState] = {}
        self.published: set[str] = set()
        self.tokens: list[list[Token]] = []  # each given token, on each ledger
        assert self.each(lambda ledger, _: ledger.begin_epoch(1, 0))
        self.heartbeat("gpu-00000a", "ready")

    def each(self, call: Callable[[Ledger, int], Any]) -> Any:
        replies = [call(ledger, at) for at, ledger in enumerate(self.ledgers)]
        assert all(plain(reply) == plain(replies[0]) for reply in replies[1:]), [plain(reply) for reply in replies]
        self.replies = replies
        return replies[0]

    def given(self, choose: Callable[[Any], list[Claim]]) -> None:
        for claims in zip(*(choose(reply) for reply in self.replies), strict=True):
            for claim in claims:
                assert claim.token.epoch == self.epoch
                assert claim.token.attempt <= claim.max_attempts
                assert claim.job.state in ("running", "committed")
            self.tokens.append([claim.token for claim in claims])

    # -- rules ---------------------------------------------------------------------------------------------------
    @rule(number=NUMBERS, generation=st.integers(1, 3), look=st.booleans(), attempts=st.integers(1, 2))
    def submit(self, number: int, generation: int, look: bool, attempts: int) -> None:
        given = JobInput(bucket="scans", key=f"{number}", etag="e", size=1)
        job = NewJob(
            job_id(number),
            FUNCTIONS[number % 2],
            given,
            "r",
            generation=generation,
            look_first=look,
            max_attempts=attempts,
        )
        reply = self.each(lambda ledger, _: ledger.submit(job))
        if reply.created:
            assert self.accepted.get(job.id, 0) < generation or job.id not in self.live
            self.accepted[job.id] = generation
            self.ended.pop((job.id, generation), None)

    @rule(number=NUMBERS, generation=st.integers(1, 3), state=STATES)
    def relist(self, number: int, generation: int, state: Any) -> None:
        manifest = Manifest(
            job_id=job_id(number),
            function=FUNCTIONS[number % 2],
            revision="r",
            generation=generation,
            state=state,
            input=JobInput(bucket="scans", key=f"{number}", etag="e", size=1),
            error=JobError(code="timeout") if state == "failed" else None,
            agent="gpu-00000a",
            pool="gpu",
            created_at=1.0,
            finished_at=2.0,
        )
        if self.each(lambda ledger, _: ledger.relist(manifest)):
            assert self.accepted.get(manifest.job_id, 0) < generation
            self.accepted[manifest.job_id] = generation
            self.ended.pop((manifest.job_id, generation), None)
            self.published.add(manifest.job_id)

    @rule(agent=AGENTS, state=st.sampled_from(["ready", "ready", "draining"]))
    def heartbeat(self, agent: str, state: Any) -> None:
        self.each(lambda ledger, _: ledger.heartbeat(AgentReport(agent, "gpu", 2, state=state)))

    @rule(agent=AGENTS, number=st.integers(0, 2), function=st.sampled_from(FUNCTIONS))
    def grant(self, agent: str, number: int, function: str) -> None:
        self.each(lambda ledger, _: ledger.set_grants(function, {agent: number}, Placement(pool="gpu")))

    @precondition(lambda self: self.queued())
    @rule(number=NUMBERS, agent=AGENTS)
    def release(self, number: int, agent: str) -> None:
        waiting = self.queued()
        chosen = waiting[number % len(waiting)]
        self.each(lambda ledger, _: ledger.release(chosen, agent, Placement(pool="gpu")))

    @rule(number=NUMBERS, agent=AGENTS, lease_s=LEASES, attempts=st.integers(1, 2), until=st.sampled_from(WAY))
    def run_one(self, number: int, agent: str, lease_s: float, attempts: int, until: str) -> None:
        """The plain way up to some point, which chance alone seldom finds."""
        self.heartbeat(agent, "ready")
        self.submit(number, self.accepted.get(job_id(number), 0) + 1, False, attempts)
        self.each(lambda ledger, _: ledger.release(job_id(number), agent, Placement(pool="gpu")))
        if until == "released":
            return
        self.claim(agent, 3, lease_s)
        if until == "running":
            return
        if self.tokens:
            self.commit(0, "succeeded", lease_s)
            if until == "published":
                self.publish(0, "succeeded")

    @rule(agent=AGENTS, limit=st.integers(1, 3), lease_s=LEASES)
    def claim(self, agent: str, limit: int, lease_s: float) -> None:
        self.each(lambda ledger, _: ledger.claim(agent, limit, lease_s))
        self.given(lambda reply: reply)

    @rule(number=NUMBERS, lease_s=LEASES)
    def seize(self, number: int, lease_s: float) -> None:
        self.each(lambda ledger, _: ledger.seize(job_id(number), "placement", lease_s))
        self.given(lambda reply: [reply] if reply else [])

    @rule(number=NUMBERS, lease_s=LEASES)
    def cancel(self, number: int, lease_s: float) -> None:
        self.each(lambda ledger, _: ledger.cancel(job_id(number), "anna", lease_s))
        self.given(lambda reply: [reply[1]] if reply[1] else [])

    def token(self, back: int) -> list[Token]:
        """Some token that was given out, a young one."""
        return self.tokens[-1 - back % min(6, len(self.tokens))]

    @precondition(lambda self: self.tokens)
    @rule(back=BACK, lease_s=LEASES)
    def renew(self, back: int, lease_s: float) -> None:
        token = self.token(back)
        self.each(lambda ledger, at: ledger.renew([token[at]], lease_s))

    @precondition(lambda self: self.tokens)
    @rule(back=BACK)
    def progress(self, back: int) -> None:
        token = self.token(back)
        self.each(lambda ledger, at: ledger.progress(token[at], 1, None, None))

    @precondition(lambda self: self.tokens)
    @rule(back=BACK, state=STATES, lease_s=LEASES)
    def commit(self, back: int, state: Any, lease_s: float) -> None:
        token = self.token(back)
        self.each(lambda ledger, at: ledger.commit(token[at], Ended(state), lease_s))

    @precondition(lambda self: self.tokens)
    @rule(back=BACK, state=STATES)
    def publish(self, back: int, state: Any) -> None:
        token = self.token(back)
        error = JobError(code="timeout") if state == "failed" else None
        if self.each(lambda ledger, at: ledger.published(token[at], Ended(state, error=error))):
            self.published.add(token[0].job_id)

    @precondition(lambda self: self.tokens)
    @rule(back=BACK, count=st.booleans(), delay_s=st.sampled_from([0.0, 0.0, LONG_S]))
    def give_back(self, back: int, count: bool, delay_s: float) -> None:
        token = self.token(back)
        self.each(lambda ledger, at: ledger.give_back(token[at], count=count, delay_s=delay_s, why="drain"))

    @rule(agent=AGENTS)
    def agent_gone(self, agent: str) -> None:
        self.each(lambda ledger, _: ledger.agent_gone(agent))

    @rule(agent=AGENTS)
    def drain_agent(self, agent: str) -> None:
        self.each(lambda ledger, _: ledger.drain_agent(agent))

    @rule(
        lease_s=LEASES,
        ttl_s=st.sampled_from([0.0, LONG_S, LONG_S]),
        limit=st.sampled_from([2, 200]),
        seized=st.sampled_from([None, None, 0, 1]),
    )
    def sweep(self, lease_s: float, ttl_s: float, limit: int, seized: int | None) -> None:
        self.each(lambda ledger, _: ledger.sweep("placement", lease_s, ttl_s, limit, seized=seized))
        self.given(lambda reply: [*reply.exhausted, *reply.unpublished])

    @rule()
    def new_epoch(self) -> None:
        self.epoch += 1
        assert self.each(lambda ledger, _: ledger.begin_epoch(self.epoch, 0))
        assert not self.each(lambda ledger, _: ledger.begin_epoch(self.epoch, 5))

    @rule(before=st.sampled_from([0.0, 9e9]))
    def expire(self, before: float) -> None:
        for identity in [job.id for job in self.jobs() if job.state.terminal] if before else []:
            self.accepted.pop(identity, None)
        self.each(lambda ledger, _: ledger.expire(before, 1000))

    @rule(seconds=st.sampled_from([0.5, 5.0, 2 * LONG_S]))
    def jump(self, seconds: float) -> None:
        if self.clock is not None:
            self.clock.now_s += seconds

    # -- what holds always ---------------------------------------------------------------------------------------
    def jobs(self) -> tuple[Job, ...]:
        page = self.each(lambda ledger, _: ledger.jobs(limit=100))
        assert page.cursor is None
        return tuple(page.jobs)

    @invariant()
    def filtered_lists_agree_with_the_whole_list(self) -> None:
        jobs = self.jobs()
        for state in JobState:
            found = self.each(lambda ledger, _, state=state: ledger.jobs(state=state))  # type: ignore[misc]
            assert [job.id for job in found.jobs] == [job.id for job in jobs if job.state == state]

    def queued(self) -> list[str]:
        return [job.id for job in self.jobs() if job.state == "queued"]

    @property
    def live(self) -> set[str]:
        return {job.id for job in self.jobs()}

    @invariant()
    def nothing_is_lost_and_counters_equal_a_recount(self) -> None:
        jobs = self.jobs()
        assert {job.id: job.generation for job in jobs} == self.accepted
        recount = Counter((job.function, job.state) for job in jobs)
        counts = self.each(lambda ledger, _: ledger.counts())
        assert {(f, s): n for f, states in counts.items() for s, n in states.items()} == recount
        waiting = {
            entry.function: entry.ready + entry.delayed for entry in self.each(lambda ledger, _: ledger.backlog())
        }
        assert waiting == {f: n for (f, s), n in recount.items() if s == "queued"}
        still_open = self.each(lambda ledger, _: {job.id for job in ledger.iter_open()})
        assert still_open == {job.id for job in jobs if not job.state.terminal}

    @invariant()
    def what_ended_never_changes(self) -> None:
        for job in self.jobs():
            life = (job.id, job.generation)
            if life in self.ended:
                assert job.state == self.ended[life]
            if job.state.terminal:
                assert job.finished_at is not None
                self.ended[life] = job.state

    @invariant()
    def an_identity_is_settled_when_it_was_published(self) -> None:
        ids = [job_id(number) for number in range(4)]
        known = self.each(lambda ledger, _: ledger.known(ids))
        assert known == [identity in self.published or identity in self.accepted for identity in ids]

    @invariant()
    def at_most_one_token_of_a_job_is_current(self) -> None:
        # A renewal of all tokens at once would prolong leases; progress changes nothing that matters here.
        current: Counter[str] = Counter()
        for token in self.tokens[-12:]:
            if self.each(lambda ledger, at, token=token: ledger.progress(token[at], 1, None, None)):  # type: ignore[misc]
                current[token[0].job_id] += 1
        assert all(number == 1 for number in current.values())

    @invariant()
    def agents_see_what_they_have(self) -> None:
        jobs = self.jobs()
        released = self.each(lambda ledger, _: {agent.name: agent.released for agent in ledger.agents()})
        for name, number in released.items():
            assert number == sum(job.state == "released" and job.agent == name for job in jobs)

    @invariant()
    def each_job_is_in_exactly_one_place_of_the_server(self) -> None:
        for ledger in self.ledgers:
            if isinstance(ledger, RedisLedger):
                check_places(ledger, self.jobs())


INDEXES = {
    "jobs": tuple(JobState),
    "jobs:open": ("queued", "released", "running", "committed"),
    "jobs:active": ("released", "running", "committed"),
    "jobs:unsuccessful": ("failed", "cancelled"),
}


def check_places(ledger: RedisLedger, jobs: tuple[Job, ...]) -> None:
    """Compare the sorted sets of the server with the states in its hashes."""
    keys, calls = ledger._connection.keys, ledger._connection.calls
    places: list[tuple[str, str]] = []
    for name in calls.scan_iter(f"{keys.prefix}*"):
        shape = str(name).removeprefix(keys.prefix)
        if shape.startswith(("queue:", "released:")) or shape in ("leases", "finished"):
            members: Any = calls.zrange(name, 0, -1)
            places += [(str(member), shape) for member in members]
        if shape in INDEXES:
            members = calls.zrange(name, 0, -1)
            assert sorted(map(str, members)) == sorted(job.id for job in jobs if job.state in INDEXES[shape])
        if shape.startswith(("running:", "publishing:")):
            kind = "running" if shape.startswith("running:") else "committed"
            members = calls.smembers(name)
            for member in members:
                assert any(job.id == member and job.state == kind for job in jobs), (shape, member)
    expected = []
    for job in jobs:
        if job.state == "queued":
            expected.append((job.id, f"queue:{job.function}"))
        elif job.state == "released":
            expected.append((job.id, f"released:{job.agent}"))
        else:
            expected.append((job.id, "finished" if job.state.terminal else "leases"))
    assert sorted(places) == sorted(expected)


def test_random_histories_of_the_twin_keep_the_invariants() -> None:
    clock = FakeClock()

    class Twin(LedgerMachine):
        @staticmethod
        def make() -> list[Ledger]:
            return [MemoryLedger(clock)]

    Twin.clock = clock
    run_state_machine_as_test(Twin, settings=settings(max_examples=100, stateful_step_count=50, deadline=None))


@pytest.fixture
def server(redis_url: str) -> Iterator[Callable[[], Ledger]]:
    opened: list[RedisLedger] = []

    def make() -> Ledger:
        opened.append(connect(redis_url, f"p{secrets.token_hex(4)}:"))
        return opened[-1]

    yield make
    for ledger in opened:
        ledger.close()


def test_random_histories_give_the_same_replies_from_the_twin_and_from_valkey(
    server: Callable[[], Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two clocks never agree on when exactly two seconds are over.
    monkeypatch.setattr("tidemill.ledger.jobs._UNCLAIMED_S", LONG_S)
    monkeypatch.setattr("tidemill.testing.memory_jobs._UNCLAIMED_US", LONG_S * 1e6)

    class Both(LedgerMachine):
        @staticmethod
        def make() -> list[Ledger]:
            return [MemoryLedger(time.time), server()]

    run_state_machine_as_test(
        Both,
        settings=settings(
            max_examples=20, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
        ),
    )
