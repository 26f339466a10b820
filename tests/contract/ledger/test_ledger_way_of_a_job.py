"""The plain way of a job, and what doubled calls do to it."""

import threading

import pytest

from tests.contract.ledger.world import World
from tidemill.ledger.api import Ended, NewJob
from tidemill.models import JobError, JobInput, JobState, OutputObject, Placement


def test_a_job_goes_from_submit_to_succeeded_and_each_state_is_one_line_of_the_stream(world: World) -> None:
    ledger = world.ledger
    agent = world.agent()
    job = world.new(1, params={"lang": "de"}, owner="anna")

    submitted = ledger.submit(job)
    assert (submitted.created, submitted.state, submitted.agent) == (True, JobState.queued, None)
    placement = Placement(pool="gpu", reason="the cheapest in time")
    assert ledger.release(job.id, agent, placement)
    (claim,) = ledger.claim(agent, 5, 60.0)
    assert (claim.token.attempt, claim.token.epoch, claim.look_first, claim.max_attempts) == (1, 1, False, 3)
    assert ledger.progress(claim.token, 3, 10, "pages")
    running = ledger.job(job.id)
    assert running is not None and running.progress is not None
    assert (running.progress.done, running.progress.total, running.progress.unit) == (3, 10, "pages")
    output = OutputObject(bucket="results", key="1.json", size=7, sha256="ab")
    ended = Ended("succeeded", outputs=(output,), usd=0.25, gpu_seconds=1.5, run_s=1.5)
    assert ledger.commit(claim.token, ended, 60.0)
    committed = ledger.job(job.id)
    assert committed is not None and committed.state == "committed" and committed.outputs == ()
    assert ledger.published(claim.token, ended)

    done = ledger.job(job.id)
    assert done is not None
    assert (done.state, done.owner, done.params, done.input) == ("succeeded", "anna", {"lang": "de"}, job.input)
    assert (done.outputs, done.cost.usd, done.cost.gpu_seconds) == ((output,), 0.25, 1.5)
    assert (done.pool, done.agent, done.placement, done.error) == ("gpu", agent, placement, None)
    times = [done.created_at, done.released_at, done.started_at, done.finished_at]
    assert None not in times and times == sorted(times)  # type: ignore[type-var]
    lines = ledger.transitions("0")
    assert [str(line.state) for line in lines] == ["queued", "released", "running", "committed", "succeeded"]
    assert [line.created for line in lines] == [True, False, False, False, False]
    assert lines[0].summary == "scans/in/1.png"
    assert [line.agent for line in lines] == [None, agent, agent, agent, agent]
    assert lines[-1].run_s == 1.5


def test_the_same_identity_is_the_same_job(world: World) -> None:
    job = world.new(1)
    assert world.ledger.submit(job).created
    again = world.ledger.submit(job)
    assert (again.created, again.state, again.generation) == (False, JobState.queued, 1)
    assert sum(len(found.jobs) for found in world.ledger.backlog()) == 1


def test_many_threads_that_submit_one_identity_create_it_once(world: World) -> None:
    job, created, start = world.new(1), [], threading.Barrier(8)

    def submit() -> None:
        start.wait()
        created.append(world.ledger.submit(job).created)

    threads = [threading.Thread(target=submit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(created) == [False] * 7 + [True]


def test_many_agents_claim_each_job_once(world: World) -> None:
    ids = [world.submit() for _ in range(40)]
    agents = [world.agent(f"gpu-00000{number}") for number in range(4)]
    for number, job_id in enumerate(ids):
        assert world.ledger.release(job_id, agents[number % 4], Placement(pool="gpu"))
    claimed: list[str] = []

    def work(agent: str) -> None:
        while claims := world.ledger.claim(agent, 3, 60.0):
            claimed.extend(claim.job.id for claim in claims)

    threads = [threading.Thread(target=work, args=(agent,)) for agent in agents for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(claimed) == sorted(ids)


def test_jobs_are_claimed_in_the_order_of_their_release_up_to_the_limit(world: World) -> None:
    agent = world.agent()
    ids = [world.submit() for _ in range(5)]
    for job_id in reversed(ids):
        world.ledger.release(job_id, agent, Placement(pool="gpu"))
    assert [claim.job.id for claim in world.ledger.claim(agent, 2, 60.0)] == [ids[4], ids[3]]
    assert [claim.job.id for claim in world.ledger.claim(agent, 9, 60.0)] == [ids[2], ids[1], ids[0]]
    assert world.ledger.claim(agent, 9, 60.0) == []


def test_doubled_release_commit_and_published_give_the_same_reply(world: World) -> None:
    ledger, agent, job_id = world.ledger, world.agent(), world.submit()
    assert [ledger.release(job_id, agent, Placement(pool="gpu")) for _ in range(2)] == [True, True]
    (claim,) = ledger.claim(agent, 1, 60.0)
    ended = Ended("failed", error=JobError(code="function_failed", message="no"))
    assert [ledger.commit(claim.token, ended, 60.0) for _ in range(2)] == [True, True]
    assert [ledger.published(claim.token, ended) for _ in range(2)] == [True, True]
    assert ledger.published(claim.token, Ended("succeeded")) is False
    assert world.state(job_id) == "failed"
    assert len(ledger.transitions("0")) == 5


def test_release_refuses_unknown_and_draining_agents_and_jobs_that_do_not_wait(world: World) -> None:
    ledger, job_id = world.ledger, world.submit()
    assert not ledger.release(job_id, "gpu-ffffff", Placement())
    world.agent("gpu-000002", state="draining")
    assert not ledger.release(job_id, "gpu-000002", Placement())
    agent = world.agent()
    assert not ledger.release("f" * 32, agent, Placement())
    claim = world.claim(job_id)
    assert not ledger.release(job_id, agent, Placement())
    world.finish(claim.token)
    assert not ledger.release(job_id, agent, Placement())


def test_the_reasons_why_a_job_waits_are_kept_while_it_is_queued_only(world: World) -> None:
    ledger, job_id = world.ledger, world.submit()
    why = Placement(reason="no pool has 40 GiB")
    assert ledger.note_placement(job_id, why)
    job = ledger.job(job_id)
    assert job is not None and job.placement == why
    world.claim(job_id)
    assert not ledger.note_placement(job_id, why)
    assert not ledger.note_placement("f" * 32, why)


def test_given_back_jobs_wait_for_their_delay_and_count_their_attempt(world: World) -> None:
    ledger, claim = world.ledger, world.claimed(max_attempts=2)
    error = JobError(code="function_failed", message="flaky")
    assert ledger.give_back(claim.token, delay_s=0.2, why="temporary", error=error)
    assert ledger.give_back(claim.token, delay_s=0.2, why="temporary", error=error), "a lost reply is asked again"
    (found,) = ledger.backlog()
    assert (found.ready, found.delayed, found.jobs) == (0, 1, ())
    assert found.next_delayed_at is not None
    world.advance(0.25)
    (found,) = ledger.backlog()
    assert (found.ready, found.delayed, found.next_delayed_at) == (1, 0, None)
    assert (found.jobs[0].attempt, found.jobs[0].last_agent) == (1, "gpu-000001")
    again = world.claim(claim.job.id)
    assert (again.token.attempt, again.look_first) == (2, True)
    assert [(e.what, e.attempt, e.detail) for e in again.job.history] == [
        ("given_back", 1, "temporary: function_failed: flaky")
    ]
    assert not ledger.give_back(claim.token), "somebody else has it"


def test_an_attempt_that_was_drained_does_not_count_and_the_next_one_looks_first(world: World) -> None:
    claim = world.claimed()
    assert world.ledger.give_back(claim.token, count=False, why="drain")
    again = world.claim(claim.job.id)
    assert (again.token.attempt, again.look_first) == (1, True)
    assert again.token.nonce != claim.token.nonce


def test_a_job_that_the_reconciler_found_looks_first(world: World) -> None:
    assert world.claimed(look_first=True).look_first


def test_seizing_takes_a_waiting_job_out_of_the_queue_without_an_attempt(world: World) -> None:
    ledger = world.ledger
    queued = world.submit()
    claim = ledger.seize(queued, "placement", 60.0)
    assert claim is not None and (claim.token.attempt, claim.cancel) == (0, False)
    assert ledger.backlog() == []
    assert ledger.seize(queued, "placement", 60.0) is None
    assert not ledger.release(queued, world.agent(), Placement())
    world.finish(claim.token, "failed", error=JobError(code="no_capacity"))
    assert world.state(queued) == "failed"

    released = world.submit()
    assert ledger.release(released, "gpu-000001", Placement())
    assert ledger.seize(released, "placement", 60.0) is not None
    job = ledger.job(released)
    assert job is not None and (job.state, job.agent, job.pool) == ("running", None, None)
    assert ledger.transitions("0")[-1].agent is None, "nobody runs it"
    assert ledger.claim("gpu-000001", 5, 60.0) == []
    assert ledger.seize("f" * 32, "placement", 60.0) is None


def test_a_seized_job_that_is_given_back_keeps_its_attempts(world: World) -> None:
    claim = world.claimed()
    assert world.ledger.give_back(claim.token)
    seized = world.ledger.seize(claim.job.id, "placement", 60.0)
    assert seized is not None and seized.token.attempt == 1
    assert world.ledger.give_back(seized.token, count=False)
    assert world.claim(claim.job.id).token.attempt == 2


@pytest.mark.parametrize("where", ["queued", "released"])
def test_cancelling_a_waiting_job_gives_it_to_the_caller(world: World, where: str) -> None:
    ledger, job_id = world.ledger, world.submit()
    if where == "released":
        assert ledger.release(job_id, world.agent(), Placement())
    before, claim = ledger.cancel(job_id, "anna", 60.0)
    assert before == where and claim is not None and claim.cancel
    world.finish(claim.token, "cancelled", error=JobError(code="cancelled"))
    job = ledger.job(job_id)
    assert job is not None and job.state == "cancelled" and job.cancel_requested
    assert [(event.what, event.detail) for event in job.history] == [("cancel_requested", "anna")]


def test_a_running_job_hears_of_its_cancel_with_the_next_renewal(world: World) -> None:
    ledger, claim = world.ledger, world.claimed()
    assert ledger.renew([claim.token], 60.0)[0].cancel is False
    assert ledger.cancel(claim.job.id, "anna", 60.0) == (JobState.running, None)
    assert ledger.cancel(claim.job.id, "anna", 60.0) == (JobState.running, None)
    (renewal,) = ledger.renew([claim.token], 60.0)
    assert (renewal.held, renewal.cancel) == (True, True)
    job = ledger.job(claim.job.id)
    assert job is not None and len(job.history) == 1


def test_a_cancel_comes_too_late_for_committed_and_ended_jobs(world: World) -> None:
    ledger, claim = world.ledger, world.claimed()
    assert ledger.commit(claim.token, Ended("succeeded"), 60.0)
    assert ledger.cancel(claim.job.id, "anna", 60.0) == (JobState.committed, None)
    assert ledger.published(claim.token, Ended("succeeded"))
    assert ledger.cancel(claim.job.id, "anna", 60.0) == (JobState.succeeded, None)
    assert ledger.cancel("f" * 32, "anna", 60.0) == (None, None)


def test_a_job_given_back_while_its_cancel_is_asked_is_ended_by_the_sweep(world: World) -> None:
    ledger, claim = world.ledger, world.claimed()
    ledger.cancel(claim.job.id, "anna", 60.0)
    assert ledger.give_back(claim.token, count=False)
    assert ledger.backlog() == []
    (mine,) = ledger.sweep("placement", 60.0, 60.0).exhausted
    assert mine.cancel
    world.finish(mine.token, "cancelled")


def test_a_higher_generation_starts_a_new_life_and_others_change_nothing(world: World) -> None:
    ledger, job = world.ledger, world.new(1)
    ledger.submit(job)
    second = NewJob(job.id, job.function, job.input, job.revision, generation=2)
    assert ledger.submit(second).created is False, "the first life goes on"
    claim = world.claim(job.id)
    ledger.append_log(claim.token, [("stdout", "first life")])
    world.finish(claim.token, "failed", error=JobError(code="function_failed"))
    assert ledger.submit(job).state == "failed"
    first = ledger.job(job.id)

    again = ledger.submit(second)
    assert (again.created, again.state, again.generation) == (True, JobState.queued, 2)
    reborn = ledger.job(job.id)
    assert first is not None and reborn is not None
    assert (reborn.generation, reborn.attempt, reborn.error, reborn.history) == (2, 0, None, ())
    assert reborn.created_at == first.created_at, "its place in listings stays"
    assert ledger.log(job.id) == []
    assert ledger.submit(job).generation == 2
    assert not ledger.published(claim.token, Ended("failed")), "the old life cannot end the new one"
    assert world.claim(job.id).token.generation == 2
    assert ledger.counts() == {"ocr": {JobState.running: 1}}


def test_the_revision_that_ran_is_the_one_shown(world: World) -> None:
    claim = world.claimed()
    world.finish(claim.token, revision="ffff00001111")
    job = world.ledger.job(claim.job.id)
    assert job is not None and job.revision == "ffff00001111"


def test_hostile_names_come_back_unchanged(world: World) -> None:
    key = 'a+b %2F ü ü 🙂 "q" \\ \n {"x":1} \x00' + "é" * 400
    given = JobInput(bucket="scans", key=key, etag="e", size=0)
    job = NewJob("ab" * 16, "ocr", given, "r", params={"x": [1, None, "ü"]})
    world.ledger.submit(job)
    found = world.ledger.job(job.id)
    assert found is not None and found.input == given and found.params == job.params
    (line,) = world.ledger.transitions("0")
    assert len(line.summary) == 120 and line.summary.startswith("scans/…") and line.summary.endswith("é")


def test_a_grant_sends_a_new_job_straight_to_its_agent_once(world: World) -> None:
    ledger, agent = world.ledger, world.agent()
    placement = Placement(pool="gpu", reason="idle")
    ledger.set_grants("ocr", {agent: 1}, placement)
    first = ledger.submit(world.new())
    assert (first.state, first.agent) == (JobState.released, agent)
    assert ledger.submit(world.new()).state == "queued"
    (claim,) = ledger.claim(agent, 5, 60.0)
    assert claim.job.placement == placement and claim.job.pool == "gpu"
    assert [str(line.state) for line in ledger.transitions("0")][:2] == ["queued", "released"]


def test_a_commit_gives_its_grant_back_unless_grants_were_replaced_or_the_job_went_another_way(world: World) -> None:
    ledger, agent = world.ledger, world.agent()
    ended = Ended("succeeded")
    ledger.set_grants("ocr", {agent: 1})
    assert ledger.submit(world.new()).agent == agent
    (claim,) = ledger.claim(agent, 1, 60.0)
    for _ in range(2):  # the second is a repetition
        assert ledger.commit(claim.token, ended, 60.0)
    again = ledger.submit(world.new())
    assert again.agent == agent
    (claim,) = ledger.claim(agent, 1, 60.0)
    ledger.set_grants("ocr", {agent: 1})
    ledger.commit(claim.token, ended, 60.0)
    assert ledger.submit(world.new()).agent == agent
    waits = world.new()
    assert ledger.submit(waits).agent is None, "what was used of the old grants has not come back"
    (claim,) = ledger.claim(agent, 1, 60.0)
    ledger.give_back(claim.token)
    for job_id in (claim.token.job_id, waits.id):
        ledger.release(job_id, agent, Placement(pool="gpu"))
        (claim,) = ledger.claim(agent, 1, 60.0)
        assert claim.token.job_id == job_id
        ledger.commit(claim.token, ended, 60.0)
    assert ledger.submit(world.new()).agent is None, "the planner released both, no grant paid for them"


def test_an_end_that_was_told_only_once_gives_its_grant_back_too(world: World) -> None:
    ledger, agent = world.ledger, world.agent()
    ledger.set_grants("ocr", {agent: 1})
    assert ledger.submit(world.new()).agent == agent
    (claim,) = ledger.claim(agent, 1, 60.0)
    for _ in range(2):  # the second is a repetition
        assert ledger.published(claim.token, Ended("succeeded"))
    assert ledger.submit(world.new()).agent == agent
    assert ledger.submit(world.new()).agent is None


def test_a_grant_never_overtakes_waiting_jobs_and_never_reaches_a_gone_agent(world: World) -> None:
    ledger, agent = world.ledger, world.agent()
    waiting = world.submit()
    ledger.set_grants("ocr", {agent: 5})
    assert ledger.submit(world.new()).state == "queued"
    assert ledger.submit(world.new(function="other")).state == "queued"
    ledger.set_grants("third", {agent: 5})
    ledger.agent_gone(agent)
    assert ledger.submit(world.new(function="third")).state == "queued"
    assert world.state(waiting) == "queued"


def test_grants_are_replaced_and_the_agent_with_most_left_comes_first(world: World) -> None:
    ledger = world.ledger
    one, two = world.agent("gpu-000001"), world.agent("gpu-000002")
    ledger.set_grants("ocr", {one: 9})
    ledger.set_grants("ocr", {one: 1, two: 2})
    assert [ledger.submit(world.new()).agent for _ in range(4)] == [two, one, two, None]
