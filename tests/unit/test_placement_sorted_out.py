"""Jobs that the planner ends without a run, and those that it must not end."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.support import wait_until
from tests.support.house import House, Now, job_id
from tidemill.models import JobError, JobState, PoolSpec
from tidemill.record import keys


def test_a_job_that_no_pool_can_run_fails_at_once_with_the_reasons(house: House) -> None:
    house.function(resources={"gpu": {"memory": "4Gi"}})
    house.pool()
    house.submit(job_id(1))
    house.turn()
    job = house.ledger.job(job_id(1))
    assert job is not None
    assert job.error is not None
    assert (job.state, job.error.code) == (JobState.failed, "no_capacity")
    assert "p: function needs a GPU with 4 GiB; pool has none" in job.error.message
    manifest = house.record.get_manifest("ocr", job_id(1), 1)
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
    house.submit(job_id(1))
    house.turn()
    assert house.state(job_id(1)) is JobState.queued
    house.ledger.put_pool(new)
    house.ledger.advance(2, 1)
    house.turn(1.0)
    assert house.state(job_id(1)) is JobState.queued


def test_while_the_record_of_a_pool_is_damaged_no_job_fails_for_want_of_it(house: House) -> None:
    house.function(resources={"gpu": {"memory": "4Gi"}})
    house.pool()
    house.record.store.put("tidemill", keys.pool("new"), b"{torn")
    house.submit(job_id(1))
    house.turn()
    assert house.state(job_id(1)) is JobState.queued
    house.record.delete_pool("new")
    house.turn(1.0)
    assert house.state(job_id(1)) is JobState.failed


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
        house.submit(job_id(number), function=name)
    with ThreadPoolExecutor(16) as workers:
        house.planner._workers = workers
        house.turn()
        house.turn(1.0)
        assert asked.wait(20)
        assert {house.state(job_id(number)) for number in range(15)} == {JobState.queued}
        store.set()
        wait_until(lambda: not house.planner._ending)
    assert [house.state(job_id(number)) for number in range(15)] == ["failed"] * 5 + ["queued"] * 5 + ["cancelled"] * 5
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
        house.submit(job_id(number), function="damaged")
    house.submit(job_id(200))
    for _ in range(3):
        house.turn(0.5)
        while waiting:
            future, work = waiting.pop(0)
            future.set_result(work())
    assert house.state(job_id(200)) is JobState.failed
    assert house.state(job_id(0)) is JobState.queued


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
        house.submit(job_id(number), function=name)
    house.turn(2.0)
    assert [house.state(job_id(number)) for number in range(3)] == ["queued"] * 3
    house.ledger.advance(2, 1)
    house.turn(2.0)
    assert [house.state(job_id(number)) for number in range(3)] == ["failed", "cancelled", "failed"]


def test_waiting_jobs_of_a_function_that_cannot_start_fail_with_its_traceback(house: House) -> None:
    house.function()
    house.pool()
    error = JobError(code="start_failed", message="cannot import m", traceback="Traceback ...")
    for _ in range(3):
        house.ledger.start_failed("ocr", "r1", error, permanent=True)
        house.ledger.start_failed("ocr", "r9", error, permanent=True)
    house.submit(job_id(1))
    house.turn(2.0)
    job = house.ledger.job(job_id(1))
    assert job is not None
    assert job.error is not None
    assert (job.state, job.error.code, job.error.traceback) == (JobState.failed, "start_failed", "Traceback ...")
    house.function(revision="r2")
    house.submit(job_id(2))
    house.turn(2.0)
    assert house.state(job_id(2)) is JobState.queued


def test_a_function_that_could_not_start_is_tried_again_after_a_deploy_and_after_ten_minutes(house: House) -> None:
    record = house.function()
    house.pool()

    def fails() -> None:
        for _ in range(3):
            house.ledger.start_failed("ocr", "r1", JobError(code="start_failed", message="no driver"), permanent=True)

    fails()
    house.submit(job_id(1))
    house.turn(2.0)
    assert house.state(job_id(1)) is JobState.failed
    house.ledger.put_function(record)
    house.submit(job_id(2))
    house.turn(0.1)
    assert house.state(job_id(2)) is JobState.queued, "what was read a moment before the deploy does not count"
    fails()
    house.turn(2.0)
    assert house.state(job_id(2)) is JobState.failed
    house.submit(job_id(3))
    house.turn(597.0)
    assert house.state(job_id(3)) is JobState.failed
    house.submit(job_id(4))
    house.turn(2.0)
    assert house.state(job_id(4)) is JobState.queued


def test_waiting_jobs_of_a_deleted_function_are_cancelled_but_not_those_of_one_the_ledger_lost(house: House) -> None:
    record = house.function()
    house.pool()
    house.submit(job_id(1))
    house.ledger.remove_function("ocr")
    house.turn()
    assert house.state(job_id(1)) is JobState.queued  # the bucket still has it
    house.record.put_function(record.model_copy(update={"deleted_at": house.now}))
    house.turn(1.0)
    job = house.ledger.job(job_id(1))
    assert job is not None
    assert job.error is not None
    assert (job.state, job.error.code) == (JobState.cancelled, "function_deleted")


def test_a_damaged_function_keeps_its_own_jobs_waiting_and_no_others(house: House) -> None:
    house.function()
    house.function("other")
    house.pool()
    house.submit(job_id(1))
    house.submit(job_id(2), function="other")
    house.ledger.remove_function("ocr")
    house.record.store.put("tidemill", "functions/ocr/current.json", b"torn")
    house.turn()
    assert house.state(job_id(1)) is JobState.queued
    assert house.processes.states, "the other function's job gets an agent"


def test_a_job_whose_attempts_are_used_up_fails_with_its_history(house: House) -> None:
    house.function()
    house.pool()
    house.submit(job_id(1))
    for _ in range(3):
        house.beat("p-a")
        house.turn(1.0)
        assert len(house.ledger.claim("p-a", 1, 15.0)) == 1
        house.now += 16
        house.beat("p-a")
        house.sweeper.sweep()
    job = house.ledger.job(job_id(1))
    assert job is not None
    assert job.error is not None
    assert (job.state, job.error.code) == (JobState.failed, "attempts_exhausted")
    assert "all 3 attempts ended without a result" in job.error.message
    manifest = house.record.get_manifest("ocr", job_id(1), 1)
    assert manifest is not None
    assert [event.what for event in manifest.history].count("lease_expired") == 3
