"""What the sweep finds and mends."""

import pytest

from tests.contract.ledger.world import World
from tidemill.ledger.api import Ended, Swept
from tidemill.models import JobError, Placement

NOTHING = Swept()


def test_a_lease_that_ended_brings_the_job_back_and_counts_the_attempt(world: World) -> None:
    ledger, claim = world.ledger, world.claimed(lease_s=0.1)
    assert ledger.sweep("placement", 60.0, 60.0) == NOTHING
    world.advance(0.15)
    assert ledger.sweep("placement", 60.0, 60.0).requeued == (claim.job.id,)
    assert ledger.sweep("placement", 60.0, 60.0) == NOTHING
    again = world.claim(claim.job.id)
    assert (again.token.attempt, again.look_first) == (2, True)
    assert [(event.what, event.attempt, event.agent) for event in again.job.history] == [
        ("lease_expired", 1, "gpu-000001")
    ]


def test_a_renewed_lease_holds(world: World) -> None:
    ledger, claim = world.ledger, world.claimed(lease_s=0.1)
    assert ledger.renew([claim.token], 60.0)[0].held
    world.advance(0.15)
    assert ledger.sweep("placement", 60.0, 60.0) == NOTHING


def test_a_job_out_of_attempts_is_handed_to_the_sweeper_who_ends_it(world: World) -> None:
    ledger, claim = world.ledger, world.claimed(lease_s=0.0, max_attempts=1)
    swept = ledger.sweep("placement", 60.0, 60.0)
    (mine,) = swept.exhausted
    assert swept.requeued == () and mine.job.id == claim.job.id
    assert (mine.token.attempt, mine.look_first, mine.max_attempts) == (1, True, 1)
    assert not ledger.renew([claim.token], 60.0)[0].held
    assert ledger.agents()[0].running == 0
    world.finish(mine.token, "failed", error=JobError(code="attempts_exhausted"))
    assert world.state(claim.job.id) == "failed"


def test_a_job_given_back_without_an_attempt_left_is_ended_not_run_again(world: World) -> None:
    ledger, claim = world.ledger, world.claimed(max_attempts=1)
    assert ledger.give_back(claim.token, why="broke")
    (mine,) = ledger.sweep("placement", 60.0, 60.0).exhausted
    assert ledger.give_back(mine.token, count=False), "also when the one who should end it gives it back"
    (mine,) = ledger.sweep("placement", 60.0, 60.0).exhausted
    assert (mine.job.id, mine.token.attempt) == (claim.job.id, 1)
    assert [event.what for event in mine.job.history] == ["given_back", "given_back"]
    world.finish(mine.token, "failed")


def test_a_sweeper_that_dies_loses_the_job_to_the_next_one(world: World) -> None:
    ledger, claim = world.ledger, world.claimed(lease_s=0.0, max_attempts=1)
    (lost,) = ledger.sweep("first", 0.0, 60.0).exhausted
    (mine,) = ledger.sweep("second", 60.0, 60.0).exhausted
    assert (mine.job.id, mine.token.attempt) == (claim.job.id, 1)
    assert not ledger.commit(lost.token, Ended("failed"), 60.0)
    world.finish(mine.token, "failed")


def test_a_half_done_publication_is_handed_over_again_and_again_until_it_is_done(world: World) -> None:
    ledger, claim = world.ledger, world.claimed()
    assert ledger.commit(claim.token, Ended("succeeded"), 0.0)
    (lost,) = ledger.sweep("first", 0.0, 60.0).unpublished
    (mine,) = ledger.sweep("second", 60.0, 60.0).unpublished
    assert mine.look_first and mine.job.state == "committed"
    assert ledger.sweep("third", 60.0, 60.0).unpublished == ()
    assert not ledger.published(claim.token, Ended("succeeded"))
    assert not ledger.published(lost.token, Ended("succeeded"))
    assert ledger.published(mine.token, Ended("succeeded"))
    assert ledger.published(claim.token, Ended("succeeded")), "it is terminal in that state: nothing is left to do"


def test_a_seized_job_whose_holder_died_is_queued_again_and_a_cancelled_one_is_ended(world: World) -> None:
    ledger = world.ledger
    seized, cancelled = world.submit(), world.submit()
    assert ledger.seize(seized, "placement", 0.0) is not None
    assert ledger.cancel(cancelled, "anna", 0.0)[1] is not None
    swept = ledger.sweep("placement", 60.0, 60.0)
    assert swept.requeued == (seized,)
    (mine,) = swept.exhausted
    assert (mine.job.id, mine.cancel, mine.token.attempt) == (cancelled, True, 0)


def test_a_running_job_to_be_cancelled_whose_agent_died_is_ended_not_run_again(world: World) -> None:
    ledger, claim = world.ledger, world.claimed(lease_s=0.0)
    ledger.cancel(claim.job.id, "anna", 60.0)
    (mine,) = ledger.sweep("placement", 60.0, 60.0).exhausted
    assert mine.cancel and mine.job.id == claim.job.id


def test_a_silent_agent_is_removed_and_its_jobs_come_back(world: World) -> None:
    ledger, claim = world.ledger, world.claimed()
    released = world.submit()
    assert ledger.release(released, "gpu-000001", Placement())
    world.advance(0.2)
    world.agent("gpu-000002")
    swept = ledger.sweep("placement", 60.0, 0.15)
    assert swept.dead_agents == ("gpu-000001",)
    assert swept.requeued == (released,)
    assert ledger.sweep("placement", 60.0, 60.0).requeued == (claim.job.id,)
    assert [agent.name for agent in ledger.agents()] == ["gpu-000002"]
    assert ledger.claim("gpu-000001", 5, 60.0) == []


def test_an_agent_that_was_only_silent_keeps_the_job_if_it_renews_before_the_next_sweep(world: World) -> None:
    ledger, claim = world.ledger, world.claimed()
    assert ledger.sweep("placement", 60.0, 0.0).dead_agents == ("gpu-000001",)
    assert ledger.renew([claim.token], 60.0)[0].held
    assert ledger.sweep("placement", 60.0, 60.0).requeued == ()
    world.agent()
    assert ledger.agents()[0].running == 1
    world.finish(claim.token)


def test_agents_that_sleep_over_a_doorbell_are_rung_again_every_two_seconds(world: World) -> None:
    ledger = world.ledger
    first, second = world.agent("gpu-000001"), world.agent("gpu-000002")
    ledger.release(world.submit(), first, Placement())
    ledger.release(world.submit(), second, Placement())
    assert ledger.sweep("placement", 60.0, 60.0).ring == ()
    assert len(ledger.claim(second, 1, 60.0)) == 1
    world.advance(2.01)
    assert ledger.sweep("placement", 60.0, 60.0).ring == (first,)
    assert ledger.sweep("placement", 60.0, 60.0).ring == ()
    world.advance(2.01)
    assert ledger.sweep("placement", 60.0, 60.0).ring == (first,)


def test_an_agent_that_ended_gives_its_jobs_back_at_once(world: World) -> None:
    ledger, claim = world.ledger, world.claimed()
    committed = world.claimed()
    ledger.commit(committed.token, Ended("succeeded"), 60.0)
    released = world.submit()
    ledger.release(released, "gpu-000001", Placement())
    assert ledger.agent_gone("gpu-000001") == 3
    assert world.state(released) == "queued"
    swept = ledger.sweep("placement", 60.0, 60.0)
    assert swept.requeued == (claim.job.id,)
    assert [mine.job.id for mine in swept.unpublished] == [committed.job.id]
    assert ledger.agent_gone("gpu-000001") == 0
    assert ledger.agent_gone("never-there") == 0


@pytest.mark.parametrize("chunk", [3])
def test_twice_the_chunk_takes_more_than_one_sweep_and_loses_nothing(world: World, chunk: int) -> None:
    ledger = world.ledger
    expired = [world.claimed(lease_s=0.0).job.id for _ in range(2 * chunk)]
    held = [world.submit() for _ in range(2 * chunk)]
    world.agent("gpu-000009")
    for job_id in held:
        ledger.release(job_id, "gpu-000009", Placement())
    requeued: list[str] = []
    sweeps = 0
    more = True
    while more:
        swept = ledger.sweep("placement", 60.0, 0.0, limit=chunk)
        requeued += swept.requeued
        more = swept.more
        sweeps += 1
        assert len(swept.requeued) <= 2 * chunk
    assert sweeps > 2
    assert sorted(requeued) == sorted(expired + held)


def test_a_sweeper_without_room_mends_all_but_what_it_would_have_to_end(world: World) -> None:
    ledger = world.ledger
    late, used_up = world.claimed(), world.claimed(lease_s=0.0, max_attempts=1)
    ledger.commit(late.token, Ended("succeeded"), 0.0)
    running = world.claimed(lease_s=0.0)
    swept = ledger.sweep("placement", 60.0, 60.0, seized=0)
    assert swept == Swept(requeued=(running.job.id,))
    assert ledger.sweep("placement", 60.0, 60.0) == NOTHING, "they are put off, so that they bar no others"
    world.advance(2.01)
    one = ledger.sweep("placement", 60.0, 60.0, seized=1)
    assert len(one.unpublished) + len(one.exhausted) == 1
    world.advance(2.01)
    rest = ledger.sweep("placement", 60.0, 60.0)
    taken = [claim.job.id for swept in (one, rest) for claim in (*swept.unpublished, *swept.exhausted)]
    assert sorted(taken) == sorted([late.job.id, used_up.job.id])


def test_what_a_sweeper_has_no_room_for_bars_nothing_behind_it(world: World) -> None:
    ledger = world.ledger
    for _ in range(4):
        ledger.commit(world.claimed().token, Ended("succeeded"), 0.0)
    world.advance(0.01)
    running = world.claimed(lease_s=0.0).job.id
    requeued: list[str] = []
    for _ in range(10):
        swept = ledger.sweep("placement", 60.0, 60.0, limit=2, seized=0)
        requeued += swept.requeued
        if not swept.more:
            break
    assert requeued == [running]


def test_the_holder_of_a_job_that_was_put_off_finishes_it(world: World) -> None:
    ledger, claim = world.ledger, world.claimed()
    ledger.commit(claim.token, Ended("succeeded"), 0.0)
    ledger.sweep("placement", 60.0, 60.0, seized=0)
    world.finish(claim.token)
    assert ledger.sweep("placement", 60.0, 60.0) == NOTHING


def test_agent_gone_queues_more_jobs_than_one_call_moves(world: World) -> None:
    agent = world.agent()
    ids = [world.submit() for _ in range(1001)]
    for job_id in ids:
        world.ledger.release(job_id, agent, Placement())
    assert world.ledger.agent_gone(agent) == 1001
    (found,) = world.ledger.backlog(2000)
    assert [job.id for job in found.jobs] == ids, "each in its old place"


def test_history_keeps_the_newest_thirty_lines(world: World) -> None:
    job_id = world.submit(max_attempts=100)
    for _ in range(32):
        world.claim(job_id, lease_s=0.0)
        world.ledger.sweep("placement", 60.0, 60.0)
    job = world.ledger.job(job_id)
    assert job is not None
    assert [event.attempt for event in job.history] == list(range(3, 33))


def test_an_agent_that_ends_takes_nothing_from_the_one_who_took_its_job_over(world: World) -> None:
    ledger = world.ledger
    committed, running = world.claimed(), world.claimed(lease_s=0.0, max_attempts=1)
    ledger.commit(committed.token, Ended("succeeded"), 0.0)
    swept = ledger.sweep("placement", 60.0, 60.0)
    assert len(swept.unpublished) == len(swept.exhausted) == 1
    assert ledger.agent_gone("gpu-000001") == 0
    assert ledger.sweep("other", 60.0, 60.0) == NOTHING
    for mine in (*swept.unpublished, *swept.exhausted):
        assert ledger.renew([mine.token], 60.0)[0].held
    assert running.job.id == swept.exhausted[0].job.id
