"""Turns of the planner over the ledger in memory: what is read, decided and carried out, with agents played by hand."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support import wait_until
from tidemill.ledger.api import AgentReport, Ended, NewJob, RunnerReport
from tidemill.models import FunctionRecord, FunctionSpec, JobError, JobInput, JobState, PoolSpec
from tidemill.record import Record, keys
from tidemill.testing import MemoryLedger, MemoryStore
from tidemill_placement.core import Rules
from tidemill_placement.crew import Crew
from tidemill_placement.endings import Endings
from tidemill_placement.lead import Lead
from tidemill_placement.planner import Planner
from tidemill_placement.scalers import AgentState, ScalerError
from tidemill_placement.servertime import ServerTime
from tidemill_placement.sweeper import Sweeper

START = 1_700_000_000.0


@dataclass
class Bell:
    """Counts rings."""

    rings: list[tuple[str, str]] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)

    def ring(self, pool: str, agent: str, job_id: str = "", function: str = "") -> bool:
        self.rings.append((agent, job_id))
        return True

    def forget(self, pool: str, agent: str) -> None:
        self.forgotten.append(agent)


@dataclass
class Processes:
    """A scaler whose processes are entries in a dict."""

    states: dict[str, AgentState] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)
    broken: str = ""
    starts: int = 0

    def serves(self, pool: PoolSpec) -> bool:
        return pool.where == "local"

    def observe(self, pool: PoolSpec) -> list[AgentState]:
        if self.broken:
            raise ScalerError(self.broken)
        return [state for name, state in self.states.items() if name.startswith(pool.name + "-")]

    def start(self, pool: PoolSpec, agent: str) -> None:
        self.starts += 1
        if self.broken:
            raise ScalerError(self.broken)
        self.states[agent] = AgentState(agent, "running", 0.0)

    def stop(self, agent: str) -> None:
        self.stopped.append(agent)

    def end(self, agent: str, failed: bool = False) -> None:
        self.states[agent] = AgentState(agent, "ended", 0.0, "status 1", failed)


class Now:
    """Runs what it is given at once, in place of a thread pool."""

    def submit(self, work: Any, /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(work(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - as an executor does
            future.set_exception(error)
        return future


class House:
    """A ledger, a record, a planner, and a clock to turn."""

    def __init__(self) -> None:
        self.now = START
        self.ledger = MemoryLedger(lambda: self.now)
        self.record = Record(MemoryStore(), "tidemill")
        self.record.prepare()
        self.ledger.begin_epoch(1, 1)
        self.bell, self.processes = Bell(), Processes()
        numbers = iter(range(1, 1000))
        self.crew = Crew([self.processes], self.ledger.agent_gone, lambda pool: f"{pool}-{next(numbers):06x}")
        self.lead = Lead()
        self.endings = Endings(self.ledger, self.record, "me", 15.0, self.lead)
        clock = ServerTime(lambda: self.now)
        workers: Any = Now()
        rules = Rules(idle_timeout_s=10.0)
        self.planner = Planner(
            self.ledger, self.record, self.bell, self.endings, self.crew, workers, rules, 1.0, clock, self.lead
        )
        self.sweeper = Sweeper(self.ledger, self.endings, self.bell, "me", 15.0, 15.0, workers, lead=self.lead)
        self._position = "0"

    def function(self, name: str = "ocr", revision: str = "r1", **spec: Any) -> FunctionRecord:
        record = FunctionRecord(
            spec=FunctionSpec(name=name, handler="m:f", **spec), revision=revision, deployed_at=0, triggers_since=0
        )
        self.record.put_function(record)
        self.ledger.put_function(record)
        return record

    def pool(self, name: str = "p", slots: int = 1, most: int = 2, **spec: Any) -> None:
        price = {"usd_per_hour": 0.1}
        self.ledger.put_pool(
            PoolSpec.model_validate({"name": name, "slots": slots, "price": price, "agents": {"max": most}, **spec})
        )

    def submit(self, job_id: str, function: str = "ocr") -> None:
        source = JobInput(bucket="inbox", key=job_id, etag="e", size=10, last_modified=1)
        self.ledger.submit(NewJob(job_id, function, source, "r1"))

    def beat(self, agent: str, *runners: RunnerReport, slots: int = 1, idle_s: float = 0.0) -> None:
        pool = agent.rpartition("-")[0]
        self.ledger.heartbeat(AgentReport(agent, pool, slots, runners=runners, started_at=START, idle_s=idle_s))

    def turn(self, after_s: float = 0.0) -> float:
        self.now += after_s
        lines = self.ledger.transitions(self._position)
        self._position = lines[-1].position if lines else self._position
        return self.planner.turn(lines).again_s

    def run(self, agent: str, seconds: float = 1.0, *, told_once: bool = False) -> None:
        """The agent claims one job and ends it well; a small result is told once."""
        (claim,) = self.ledger.claim(agent, 1, 15.0)
        self.now += seconds
        ended = Ended("succeeded", run_s=seconds)
        if not told_once:
            self.ledger.commit(claim.token, ended, 15.0)
        self.ledger.published(claim.token, ended)

    def state(self, job_id: str) -> JobState:
        job = self.ledger.job(job_id)
        assert job is not None
        return job.state


@pytest.fixture
def house() -> House:
    return House()


def _id(number: int) -> str:
    return f"{number:032x}"


def test_from_zero_to_a_result_and_back_to_zero(house: House) -> None:
    house.function()
    house.pool()
    house.submit(_id(1))
    house.turn()
    (agent,) = house.processes.states
    house.turn(1.0)
    assert house.processes.starts == 1  # the booting one is counted
    job = house.ledger.job(_id(1))
    assert job is not None
    assert job.placement is not None
    assert "waits for an agent of p to start" in job.placement.reason
    house.beat(agent)
    house.turn()
    assert house.state(_id(1)) is JobState.released
    assert house.bell.rings == [(agent, _id(1))]
    assert house.ledger.heartbeat(AgentReport(agent, "p", 1)).wanted == {"ocr@r1": 1}
    house.run(agent)
    house.turn()
    house.beat(agent, RunnerReport("ocr", "r1", 1, 0, 0.0))
    house.turn(9.0)
    assert house.processes.stopped == []
    house.beat(agent, RunnerReport("ocr", "r1", 1, 0, 9.0))
    house.turn(2.0)
    assert house.processes.stopped == [agent]
    assert house.ledger.heartbeat(AgentReport(agent, "p", 1)).drain
    house.processes.end(agent)
    house.ledger.agent_gone(agent)
    house.turn(1.0)
    assert house.bell.forgotten == [agent]
    assert house.ledger.scaling()["p"] == 0


def test_an_idle_warm_agent_gets_grants_that_submit_uses_and_that_are_renewed(house: House) -> None:
    house.function()
    house.pool(slots=2)
    ready = RunnerReport("ocr", "r1", 2, 0, 0.0)
    house.beat("p-a", ready, slots=2)
    house.turn()
    source = JobInput(bucket="b", key="k", etag="e", size=1)
    first = house.ledger.submit(NewJob(_id(1), "ocr", source, "r1"))
    assert first.agent == "p-a"
    job = house.ledger.job(_id(1))
    assert job is not None
    assert job.placement is not None
    assert job.placement.pool == "p"
    house.turn()
    house.run("p-a")
    house.turn()
    agents = [house.ledger.submit(NewJob(_id(n), "ocr", source, "r1")).agent for n in (2, 3, 4)]
    assert agents == ["p-a", "p-a", None]


def test_jobs_that_come_one_after_the_other_cost_the_planner_no_new_grants(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.function()
    house.pool(slots=2)
    house.beat("p-a", RunnerReport("ocr", "r1", 2, 0, 0.0), slots=2)
    house.turn()
    house.turn()
    told: list[str] = []
    real = house.ledger.set_grants
    monkeypatch.setattr(house.ledger, "set_grants", lambda *a, **k: (told.append(a[0]), real(*a, **k))[1])
    source = JobInput(bucket="b", key="k", etag="e", size=1)
    for number in range(5):
        assert house.ledger.submit(NewJob(_id(number), "ocr", source, "r1")).agent == "p-a"
        house.turn()
        house.run("p-a")
        house.turn()
    assert told == []


def test_run_times_are_learned_from_the_stream_and_kept_over_a_reset(house: House) -> None:
    house.function()
    house.pool()
    for number in range(20):
        house.beat("p-a", RunnerReport("ocr", "r1", 1, 0, 0.0))
        house.submit(_id(number))
        house.turn()
        house.run("p-a", 7.0)
    house.turn()
    spec = house.ledger.pools()["p"].spec
    assert house.planner.view.estimates.run("ocr", spec).p50 == pytest.approx(7.0, rel=0.2)
    house.planner.reset()
    assert house.planner.view.estimates.run("ocr", spec).p50 == pytest.approx(7.0, rel=0.2)


def test_a_job_that_no_pool_can_run_fails_at_once_with_the_reasons(house: House) -> None:
    house.function(resources={"gpu": {"memory": "4Gi"}})
    house.pool()
    house.submit(_id(1))
    house.turn()
    job = house.ledger.job(_id(1))
    assert job is not None
    assert job.error is not None
    assert (job.state, job.error.code) == (JobState.failed, "no_capacity")
    assert "p: function needs a GPU with 4 GiB; pool has none" in job.error.message
    manifest = house.record.get_manifest("ocr", _id(1), 1)
    assert manifest is not None
    assert manifest.state == "failed"


@pytest.mark.parametrize("noticed", [True, False])
def test_an_older_copy_of_redis_that_lacks_a_pool_fails_no_job_for_want_of_it(house: House, noticed: bool) -> None:
    house.function(resources={"gpu": {"memory": "4Gi"}})
    house.pool()
    new = PoolSpec.model_validate(
        {"name": "new", "gpu": {"kind": "H200", "memory": "8Gi"}, "price": {"usd_per_hour": 0.1}}
    )
    house.record.put_pool(new)
    if noticed:
        house.ledger.begin_epoch(2, 0)  # the rebuild lists manifests
    house.submit(_id(1))
    house.turn()
    assert house.state(_id(1)) is JobState.queued
    house.ledger.put_pool(new)
    house.ledger.advance(2, 1)
    house.turn(1.0)
    assert house.state(_id(1)) is JobState.queued


def test_while_the_record_of_a_pool_is_damaged_no_job_fails_for_want_of_it(house: House) -> None:
    house.function(resources={"gpu": {"memory": "4Gi"}})
    house.pool()
    house.record.store.put("tidemill", keys.pool("new"), b"{torn")
    house.submit(_id(1))
    house.turn()
    assert house.state(_id(1)) is JobState.queued
    house.record.delete_pool("new")
    house.turn(1.0)
    assert house.state(_id(1)) is JobState.failed


def test_no_turn_waits_for_the_store_and_one_look_serves_all_that_are_to_end(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.function(resources={"gpu": {"memory": "4Gi"}})
    house.function("gone")
    house.ledger.remove_function("gone")
    house.record.put_function(house.function("deleted").model_copy(update={"deleted_at": house.now}))
    house.ledger.remove_function("deleted")
    house.pool()
    pools, get, asked = house.record.pools, house.record.get_function, threading.Event()
    looks: list[str] = []
    store = threading.Event()

    def waits(what: str) -> None:
        looks.append(what)
        asked.set()
        assert store.wait(20)

    monkeypatch.setattr(house.record, "pools", lambda: (waits("pools"), pools())[1])
    monkeypatch.setattr(house.record, "get_function", lambda name: (waits(name), get(name))[1])
    names = ["ocr"] * 5 + ["gone"] * 5 + ["deleted"] * 5
    for number, name in enumerate(names):
        house.submit(_id(number), function=name)
    with ThreadPoolExecutor(16) as workers:
        house.planner._workers = workers
        house.turn()
        house.turn(1.0)
        assert asked.wait(20)
        assert {house.state(_id(number)) for number in range(15)} == {JobState.queued}
        store.set()
        wait_until(lambda: not house.planner._ending)
    assert [house.state(_id(number)) for number in range(15)] == ["failed"] * 5 + ["queued"] * 5 + ["cancelled"] * 5
    assert sorted(looks) == ["deleted", "gone", "pools"]


def test_many_jobs_of_a_damaged_function_take_no_room_from_those_that_can_be_ended(house: House) -> None:
    house.function(resources={"gpu": {"memory": "4Gi"}})
    house.function("damaged")
    house.ledger.remove_function("damaged")
    house.record.store.put("tidemill", keys.function("damaged"), b"{torn")
    house.pool()
    waiting: list[Any] = []

    class Later(Now):
        def submit(self, work: Any, /, *args: Any, **kwargs: Any) -> "Future[Any]":
            future: Future[Any] = Future()
            waiting.append((future, lambda: super(Later, self).submit(work, *args, **kwargs).result()))
            return future

    workers: Any = Later()
    house.planner._workers = workers
    for number in range(150):
        house.submit(_id(number), function="damaged")
    house.submit(_id(200))
    for _ in range(3):
        house.turn(0.5)
        while waiting:
            future, work = waiting.pop(0)
            future.set_result(work())
    assert house.state(_id(200)) is JobState.failed
    assert house.state(_id(0)) is JobState.queued


def test_nothing_is_ended_while_the_ledger_is_being_rebuilt(house: House) -> None:
    house.function(resources={"gpu": {"memory": "4Gi"}})
    record = house.function("gone")
    house.record.put_function(record.model_copy(update={"deleted_at": house.now}))
    house.ledger.remove_function("gone")
    house.function("broken")
    house.pool()
    house.ledger.begin_epoch(2, 0)
    for _ in range(3):
        house.ledger.start_failed("broken", "r1", JobError(code="start_failed"), permanent=True)
    for number, name in enumerate(("ocr", "gone", "broken")):
        house.submit(_id(number), function=name)
    house.turn(2.0)
    assert [house.state(_id(number)) for number in range(3)] == ["queued"] * 3
    house.ledger.advance(2, 1)
    house.turn(2.0)
    assert [house.state(_id(number)) for number in range(3)] == ["failed", "cancelled", "failed"]


def test_waiting_jobs_of_a_function_that_cannot_start_fail_with_its_traceback(house: House) -> None:
    house.function()
    house.pool()
    error = JobError(code="start_failed", message="cannot import m", traceback="Traceback ...")
    for _ in range(3):
        house.ledger.start_failed("ocr", "r1", error, permanent=True)
        house.ledger.start_failed("ocr", "r9", error, permanent=True)
    house.submit(_id(1))
    house.turn(2.0)
    job = house.ledger.job(_id(1))
    assert job is not None
    assert job.error is not None
    assert (job.state, job.error.code, job.error.traceback) == (JobState.failed, "start_failed", "Traceback ...")
    house.function(revision="r2")
    house.submit(_id(2))
    house.turn(2.0)
    assert house.state(_id(2)) is JobState.queued


def test_a_function_that_could_not_start_is_tried_again_after_a_deploy_and_after_ten_minutes(house: House) -> None:
    record = house.function()
    house.pool()

    def fails() -> None:
        for _ in range(3):
            house.ledger.start_failed("ocr", "r1", JobError(code="start_failed", message="no driver"), permanent=True)

    fails()
    house.submit(_id(1))
    house.turn(2.0)
    assert house.state(_id(1)) is JobState.failed
    house.ledger.put_function(record)
    house.submit(_id(2))
    house.turn(0.1)
    assert house.state(_id(2)) is JobState.queued, "what was read a moment before the deploy does not count"
    fails()
    house.turn(2.0)
    assert house.state(_id(2)) is JobState.failed
    house.submit(_id(3))
    house.turn(597.0)
    assert house.state(_id(3)) is JobState.failed
    house.submit(_id(4))
    house.turn(2.0)
    assert house.state(_id(4)) is JobState.queued


def test_waiting_jobs_of_a_deleted_function_are_cancelled_but_not_those_of_one_the_ledger_lost(house: House) -> None:
    record = house.function()
    house.pool()
    house.submit(_id(1))
    house.ledger.remove_function("ocr")
    house.turn()
    assert house.state(_id(1)) is JobState.queued  # the bucket still has it
    house.record.put_function(record.model_copy(update={"deleted_at": house.now}))
    house.turn(1.0)
    job = house.ledger.job(_id(1))
    assert job is not None
    assert job.error is not None
    assert (job.state, job.error.code) == (JobState.cancelled, "function_deleted")


def test_a_damaged_function_keeps_its_own_jobs_waiting_and_no_others(house: House) -> None:
    house.function()
    house.function("other")
    house.pool()
    house.submit(_id(1))
    house.submit(_id(2), function="other")
    house.ledger.remove_function("ocr")
    house.record.store.put("tidemill", "functions/ocr/current.json", b"torn")
    house.turn()
    assert house.state(_id(1)) is JobState.queued
    assert house.processes.states, "the other function's job gets an agent"


def test_a_pool_whose_agents_end_at_once_gets_a_pause_and_the_reason_is_shown(house: House) -> None:
    house.function()
    house.pool()
    house.submit(_id(1))
    house.turn()
    (agent,) = house.processes.states
    house.processes.end(agent, failed=True)
    house.turn(1.0)
    house.turn(0.5)
    assert house.processes.starts == 1
    job = house.ledger.job(_id(1))
    assert job is not None
    assert job.placement is not None
    assert f"its agents end before they are ready (status 1); see the log of {agent}" in job.placement.reason
    house.turn(2.0)
    assert house.processes.starts == 2


def test_a_scaler_that_does_not_answer_is_asked_again_later(house: House) -> None:
    house.function()
    house.pool()
    house.processes.broken = "nobody answers on the control socket"
    house.submit(_id(1))
    house.turn()
    house.turn(0.2)
    before = house.processes.starts
    house.processes.broken = ""
    house.turn(5.0)
    assert house.processes.starts == before + 1


def test_the_jobs_of_an_agent_whose_process_ended_are_taken_back_within_a_second(house: House) -> None:
    house.function()
    house.pool()
    house.submit(_id(1))
    house.turn()
    (agent,) = house.processes.states
    house.beat(agent)
    house.turn()
    house.ledger.claim(agent, 1, 15.0)
    house.turn()
    house.processes.end(agent, failed=True)
    house.turn(1.1)
    assert house.sweeper.sweep() == 1
    assert house.state(_id(1)) is JobState.queued
    house.turn(0.2)
    assert len(house.processes.states) == 2


def test_an_agent_started_by_hand_is_used_and_never_stopped(house: House) -> None:
    house.function()
    house.pool(where={"kubernetes": {"context": "far"}})
    house.submit(_id(1))
    house.turn()
    assert house.processes.starts == 0
    house.beat("p-hand")
    house.turn()
    assert house.state(_id(1)) is JobState.released
    house.run("p-hand")
    house.turn()
    house.turn(100.0)
    house.beat("p-hand")
    house.turn(1.0)
    assert not house.ledger.heartbeat(AgentReport("p-hand", "p", 1)).drain


def test_a_job_of_a_delayed_retry_is_released_when_its_time_has_come(house: House) -> None:
    house.function()
    house.pool()
    house.beat("p-a")
    house.submit(_id(1))
    house.turn()
    (claim,) = house.ledger.claim("p-a", 1, 15.0)
    house.ledger.give_back(claim.token, delay_s=4.0)
    again_s = house.turn()
    assert again_s == 1.0
    house.turn(3.5)
    assert house.state(_id(1)) is JobState.queued
    house.beat("p-a")
    house.turn(0.6)
    assert house.state(_id(1)) is JobState.released


def test_a_job_whose_attempts_are_used_up_fails_with_its_history(house: House) -> None:
    house.function()
    house.pool()
    house.submit(_id(1))
    for _ in range(3):
        house.beat("p-a")
        house.turn(1.0)
        assert len(house.ledger.claim("p-a", 1, 15.0)) == 1
        house.now += 16
        house.beat("p-a")
        house.sweeper.sweep()
    job = house.ledger.job(_id(1))
    assert job is not None
    assert job.error is not None
    assert (job.state, job.error.code) == (JobState.failed, "attempts_exhausted")
    assert "all 3 attempts ended without a result" in job.error.message
    manifest = house.record.get_manifest("ocr", _id(1), 1)
    assert manifest is not None
    assert [event.what for event in manifest.history].count("lease_expired") == 3


def test_nothing_but_agents_and_versions_is_read_while_nothing_happens(house: House) -> None:
    house.function()
    house.pool()
    house.turn()
    calls: list[str] = []
    ledger = house.ledger

    class Counting:
        def __getattr__(self, name: str) -> Any:
            def call(*args: Any) -> Any:
                calls.append(name)
                return getattr(ledger, name)(*args)

            return call

    counting: Any = Counting()
    house.planner._ledger = counting
    house.turn(1.0)
    assert calls == ["version", "agents"]


def test_a_task_that_the_ledger_does_not_know_is_dropped_after_a_while(house: House) -> None:
    house.function()
    house.pool()
    house.beat("p-a")
    house.submit(_id(1))
    house.turn()
    house.run("p-a")
    house.ledger.transitions("0")
    house._position = house.ledger.last_position()  # the end was never heard of
    for _ in range(3):
        house.beat("p-a")
        house.turn(2.0)
    assert house.planner.view.tasks == {}


def _leads(house: House, holder: str) -> None:
    house.lead.fence = house.ledger.acquire("placement", holder, 6.0)
    assert house.lead.fence is not None


def test_a_leader_that_was_paused_beyond_its_lease_finds_every_write_refused(house: House) -> None:
    """Two services over one ledger: the first is stopped between reading and writing, the second takes over."""
    house.function()
    house.function("lost", resources={"gpu": {"memory": "4Gi"}})
    house.pool()
    house.beat("p-a")
    _leads(house, "first")
    house.submit(_id(1))
    house.submit(_id(2), "lost")
    ledger, real_plan = house.ledger, house.planner._ledger
    wrote: list[str] = []

    class Paused:
        """Another leader comes just before the first write of this turn."""

        def __getattr__(self, name: str) -> Any:
            if name in ("release", "set_wanted", "set_grants", "set_scaling", "note_placement", "drain_agent"):
                if not wrote:
                    house.now += 6.5
                    assert ledger.acquire("placement", "second", 6.0) is not None, "one lease was enough"
                wrote.append(name)
            return getattr(ledger, name)

    paused: Any = Paused()
    house.planner._ledger = paused
    house.turn()
    assert {"release", "set_wanted"} <= set(wrote)
    assert house.state(_id(1)) is JobState.queued and house.state(_id(2)) is JobState.queued
    assert house.bell.rings == []
    assert house.ledger.scaling() == {}
    assert not house.ledger.heartbeat(AgentReport("p-a", "p", 1)).told
    # It leads again: what was refused is done now, nothing is taken for done.
    house.now += 6.5
    house.planner._ledger = real_plan
    _leads(house, "first")
    house.beat("p-a")
    house.turn()
    assert house.state(_id(1)) is JobState.released and house.state(_id(2)) is JobState.failed
    assert house.ledger.heartbeat(AgentReport("p-a", "p", 1)).wanted == {"ocr@r1": 1}
    assert house.ledger.scaling() != {}


def test_the_sweep_of_a_deposed_leader_takes_no_job(house: House) -> None:
    house.function()
    house.pool()
    house.beat("p-a")
    _leads(house, "first")
    house.submit(_id(1))
    house.turn()
    assert len(house.ledger.claim("p-a", 1, 1.0)) == 1
    house.now += 6.5
    assert house.ledger.acquire("placement", "second", 6.0) is not None
    assert house.sweeper.sweep() == 0
    assert house.state(_id(1)) is JobState.running


def test_a_leader_that_was_replaced_in_its_turn_starts_no_agent(house: House) -> None:
    house.function()
    house.pool()
    _leads(house, "first")
    house.submit(_id(1))
    house.submit(_id(2))
    observe = house.processes.observe

    def paused(pool: PoolSpec) -> list[AgentState]:
        house.now += 6.5
        _leads(house, "second")
        house.planner._fence = house.lead.fence = first
        return observe(pool)

    first = house.lead.fence
    house.processes.observe = paused  # type: ignore[method-assign]
    house.turn()
    assert house.processes.starts == 0
    assert house.ledger.scaling() == {}
    house.processes.observe = observe  # type: ignore[method-assign]
    house.now += 6.5
    _leads(house, "first")
    house.turn()
    assert house.processes.starts > 0 and house.ledger.scaling() != {}


def test_a_leader_that_is_replaced_between_two_starts_starts_no_more(house: House) -> None:
    house.function()
    house.pool()
    _leads(house, "first")
    house.submit(_id(1))
    house.submit(_id(2))
    start, first = house.processes.start, house.lead.fence

    def slow(pool: PoolSpec, agent: str) -> None:
        start(pool, agent)
        house.now += 6.5
        assert house.ledger.acquire("placement", "second", 6.0) != first

    house.processes.start = slow  # type: ignore[method-assign]
    house.turn()
    assert house.processes.starts == 1


@pytest.mark.parametrize("told_once", [True, False])
def test_the_planner_counts_the_grants_that_ended_jobs_give_back(house: House, told_once: bool) -> None:
    """Else the next job of the function would be bound behind a long one of another function."""
    house.function("ocr")
    house.function("slow")
    house.pool(slots=1, most=2)
    for _ in range(3):
        house.beat("p-1", RunnerReport("ocr", "r1", 1, 0, 0.0))
        house.turn(0.3)
    house.submit("a" * 32)
    assert house.state("a" * 32) is JobState.released, "by a grant"
    house.run("p-1", 0.05, told_once=told_once)
    house.submit("b" * 32, "slow")
    house.turn(0.02)
    assert house.state("b" * 32) is JobState.released
    house.ledger.claim("p-1", 1, 15.0)
    house.turn(0.02)
    house.submit("c" * 32)
    assert house.state("c" * 32) is JobState.queued, "the grant was taken back when the slot was given away"


@pytest.mark.parametrize("told_once", [True, False])
def test_jobs_that_come_and_go_by_grants_change_no_grants(
    house: House, told_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.function("ocr")
    house.pool(slots=1, most=2)
    for _ in range(3):
        house.beat("p-1", RunnerReport("ocr", "r1", 1, 0, 0.0))
        house.turn(0.3)
    changes: list[object] = []
    monkeypatch.setattr(house.ledger, "set_grants", lambda *args, **more: changes.append(args))
    for number in range(5):
        house.submit(f"{number:032x}")
        house.run("p-1", 0.05, told_once=told_once)
        house.turn(1.0)
    assert changes == []
