"""Turns of the planner over the ledger in memory: what is read, decided and carried out, with agents played by hand."""

from typing import Any

import pytest

from tests.support.house import House, job_id
from tidemill.ledger.api import AgentReport, NewJob, RunnerReport
from tidemill.models import JobInput, JobState


def test_from_zero_to_a_result_and_back_to_zero(house: House) -> None:
    house.function()
    house.pool()
    house.submit(job_id(1))
    house.turn()
    (agent,) = house.processes.states
    house.turn(1.0)
    assert house.processes.starts == 1  # the booting one is counted
    job = house.ledger.job(job_id(1))
    assert job is not None
    assert job.placement is not None
    assert "waits for an agent of p to start" in job.placement.reason
    house.beat(agent)
    house.turn()
    assert house.state(job_id(1)) is JobState.released
    assert house.bell.rings == [(agent, job_id(1))]
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
    first = house.ledger.submit(NewJob(job_id(1), "ocr", source, "r1"))
    assert first.agent == "p-a"
    job = house.ledger.job(job_id(1))
    assert job is not None
    assert job.placement is not None
    assert job.placement.pool == "p"
    house.turn()
    house.run("p-a")
    house.turn()
    agents = [house.ledger.submit(NewJob(job_id(n), "ocr", source, "r1")).agent for n in (2, 3, 4)]
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
        assert house.ledger.submit(NewJob(job_id(number), "ocr", source, "r1")).agent == "p-a"
        house.turn()
        house.run("p-a")
        house.turn()
    assert told == []


def test_run_times_are_learned_from_the_stream_and_kept_over_a_reset(house: House) -> None:
    house.function()
    house.pool()
    for number in range(20):
        house.beat("p-a", RunnerReport("ocr", "r1", 1, 0, 0.0))
        house.submit(job_id(number))
        house.turn()
        house.run("p-a", 7.0)
    house.turn()
    spec = house.ledger.pools()["p"].spec
    assert house.planner.view.estimates.run("ocr", spec).p50 == pytest.approx(7.0, rel=0.2)
    house.planner.reset()
    assert house.planner.view.estimates.run("ocr", spec).p50 == pytest.approx(7.0, rel=0.2)


def test_a_pool_whose_agents_end_at_once_gets_a_pause_and_the_reason_is_shown(house: House) -> None:
    house.function()
    house.pool()
    house.submit(job_id(1))
    house.turn()
    (agent,) = house.processes.states
    house.processes.end(agent, failed=True)
    house.turn(1.0)
    house.turn(0.5)
    assert house.processes.starts == 1
    job = house.ledger.job(job_id(1))
    assert job is not None
    assert job.placement is not None
    assert f"its agents end before they are ready (status 1); see the log of {agent}" in job.placement.reason
    house.turn(2.0)
    assert house.processes.starts == 2


def test_a_scaler_that_does_not_answer_is_asked_again_later(house: House) -> None:
    house.function()
    house.pool()
    house.processes.broken = "nobody answers on the control socket"
    house.submit(job_id(1))
    house.turn()
    house.turn(0.2)
    before = house.processes.starts
    house.processes.broken = ""
    house.turn(5.0)
    assert house.processes.starts == before + 1


def test_the_jobs_of_an_agent_whose_process_ended_are_taken_back_within_a_second(house: House) -> None:
    house.function()
    house.pool()
    house.submit(job_id(1))
    house.turn()
    (agent,) = house.processes.states
    house.beat(agent)
    house.turn()
    house.ledger.claim(agent, 1, 15.0)
    house.turn()
    house.processes.end(agent, failed=True)
    house.turn(1.1)
    assert house.sweeper.sweep() == 1
    assert house.state(job_id(1)) is JobState.queued
    house.turn(0.2)
    assert len(house.processes.states) == 2


def test_an_agent_started_by_hand_is_used_and_never_stopped(house: House) -> None:
    house.function()
    house.pool(where={"kubernetes": {"context": "far"}})
    house.submit(job_id(1))
    house.turn()
    assert house.processes.starts == 0
    house.beat("p-hand")
    house.turn()
    assert house.state(job_id(1)) is JobState.released
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
    house.submit(job_id(1))
    house.turn()
    (claim,) = house.ledger.claim("p-a", 1, 15.0)
    house.ledger.give_back(claim.token, delay_s=4.0)
    again_s = house.turn()
    assert again_s == 1.0
    house.turn(3.5)
    assert house.state(job_id(1)) is JobState.queued
    house.beat("p-a")
    house.turn(0.6)
    assert house.state(job_id(1)) is JobState.released


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
    house.submit(job_id(1))
    house.turn()
    house.run("p-a")
    house.ledger.transitions("0")
    house._position = house.ledger.last_position()  # the end was never heard of
    for _ in range(3):
        house.beat("p-a")
        house.turn(2.0)
    assert house.planner.view.tasks == {}


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
