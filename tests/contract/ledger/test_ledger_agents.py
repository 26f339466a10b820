"""What agents say, and what they are told."""

import pytest

from tests.contract.ledger.world import World
from tidemill.ledger.api import AgentReport, RunnerReport
from tidemill.models import FunctionRecord, FunctionSpec, JobError, Placement


def test_what_an_agent_says_comes_back_with_the_ledgers_own_counts(world: World) -> None:
    ledger = world.ledger
    runner = RunnerReport("ocr", "abcdef012345", slots=2, busy=1, idle_s=0.5)
    report = AgentReport("gpu-000001", "gpu", 4, host="h", pid=7, runners=(runner,), gpu={"kind": "H200"}, idle_s=1.5)
    ledger.heartbeat(report)
    for _ in range(3):
        ledger.release(world.submit(), "gpu-000001", Placement())
    claims = ledger.claim("gpu-000001", 2, 60.0)
    (seen,) = ledger.agents()
    assert (seen.runners, seen.gpu, seen.host, seen.pid, seen.idle_s) == ((runner,), {"kind": "H200"}, "h", 7, 1.5)
    assert (seen.released, seen.running) == (1, 2)
    assert seen.seen_at > 0
    world.finish(claims[0].token)
    (seen,) = ledger.agents()
    assert (seen.released, seen.running) == (1, 1)


def test_an_agent_hears_what_it_shall_run_and_keeps_what_it_has_when_nobody_said(world: World) -> None:
    ledger, report = world.ledger, AgentReport("gpu-000001", "gpu", 4)
    ledger.set_wanted("gpu-000001", {"ocr@r1": 9})
    first = ledger.heartbeat(report)
    assert (first.wanted, first.told, first.drain) == ({}, False, False)
    ledger.set_wanted("gpu-000001", {"ocr@r1": 2})
    told = ledger.heartbeat(report)
    assert (told.wanted, told.told) == ({"ocr@r1": 2}, True)
    ledger.set_wanted("gpu-000001", {})
    told = ledger.heartbeat(report)
    assert (told.wanted, told.told) == ({}, True)


def test_a_drained_agent_gets_no_more_jobs_and_its_released_ones_are_queued_again(world: World) -> None:
    ledger, agent = world.ledger, world.agent()
    job_id = world.submit()
    assert ledger.release(job_id, agent, Placement())
    ledger.drain_agent(agent)
    job = ledger.job(job_id)
    assert job is not None and job.state == "queued" and job.agent is None
    assert [event.what for event in job.history] == ["agent_drained"]
    assert not ledger.release(job_id, agent, Placement())
    assert ledger.heartbeat(AgentReport(agent, "gpu", 4)).drain
    ledger.drain_agent("never-there")
    assert [known.name for known in ledger.agents()] == [agent]


def test_an_agent_that_says_it_drains_loses_its_released_jobs_and_keeps_its_running_ones(world: World) -> None:
    ledger, claim = world.ledger, world.claimed()
    waiting = world.submit()
    assert ledger.release(waiting, "gpu-000001", Placement())
    assert not ledger.heartbeat(AgentReport("gpu-000001", "gpu", 4, state="draining")).drain
    assert world.state(waiting) == "queued"
    assert ledger.claim("gpu-000001", 5, 60.0) == []
    assert ledger.renew([claim.token], 60.0)[0].held


def test_permanent_start_failures_are_counted_until_a_good_start(world: World) -> None:
    ledger, error = world.ledger, JobError(code="import_failed", message="no module x")
    assert ledger.start_failed("ocr", "r1", error, permanent=True) == 1
    assert ledger.start_failed("ocr", "r1", JobError(code="timeout"), permanent=False) == 1
    assert ledger.start_failed("ocr", "r1", error, permanent=True) == 2
    assert ledger.start_failed("ocr", "r2", error, permanent=False) == 0
    first, second = ledger.start_failures()
    assert (first.function, first.revision, first.permanent, first.error) == ("ocr", "r1", 2, error)
    assert (second.revision, second.permanent) == ("r2", 0)
    ledger.start_succeeded("ocr", "r1")
    assert [failure.revision for failure in ledger.start_failures()] == ["r2"]


def test_start_failures_are_forgotten_with_a_deploy_a_delete_and_a_new_epoch(world: World) -> None:
    ledger, error = world.ledger, JobError(code="start_failed")
    records = [
        FunctionRecord(spec=FunctionSpec(name=name, handler="m:f"), revision="r1", deployed_at=1.0, triggers_since=1.0)
        for name in ("ocr", "ocr-2")
    ]

    def left() -> list[str]:
        return sorted(failure.function for failure in ledger.start_failures())

    for record in records:
        ledger.put_function(record)
        ledger.start_failed(record.name, "r1", error, permanent=True)
    ledger.start_failed("ocr", "r0", error, permanent=True)
    assert left() == ["ocr", "ocr", "ocr-2"]
    ledger.put_function(records[0])
    assert left() == ["ocr-2"], "also a deploy of what is there already"
    assert ledger.start_failed("ocr", "r1", error, permanent=True) == 1
    ledger.remove_function("ocr")
    assert left() == ["ocr-2"]
    epoch = ledger.epoch()
    assert epoch is not None
    assert ledger.begin_epoch(epoch[0] + 1, 1)
    assert left() == []
    assert ledger.start_failed("ocr-2", "r1", error, permanent=True) == 1


def test_start_failures_are_forgotten_when_the_last_one_is_long_past(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, error = world.ledger, JobError(code="start_failed")
    assert ledger.start_failed("ocr", "r1", error, permanent=True) == 1
    assert ledger.start_failed("ocr", "r1", error, permanent=True) == 2
    for module in ("tidemill.ledger.agents", "tidemill.testing.memory_ledger"):
        monkeypatch.setattr(f"{module}.START_FAILURES_S", 0.02)
    world.advance(0.05)
    assert ledger.start_failures() == []
    assert ledger.start_failed("ocr", "r1", error, permanent=True) == 1


def test_the_numbers_for_outside_scalers_are_replaced_as_a_whole(world: World) -> None:
    assert world.ledger.scaling() == {}
    world.ledger.set_scaling({"gpu": 2, "gpu/ocr": 3})
    assert world.ledger.scaling() == {"gpu": 2, "gpu/ocr": 3}
    world.ledger.set_scaling({"cpu": 1})
    assert world.ledger.scaling() == {"cpu": 1}
