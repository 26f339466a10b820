"""Epochs, leader leases, and the mirrors of functions and pools."""

from tests.contract.ledger.world import World
from tidemill.ledger.api import AgentReport, Ended
from tidemill.models import FunctionRecord, FunctionSpec, Placement, PoolSpec


def test_an_epoch_only_grows_and_its_sequence_too(bare: World) -> None:
    ledger = bare.ledger
    assert ledger.epoch() is None
    assert not ledger.advance(1, 1)
    assert ledger.begin_epoch(3, 7)
    assert not ledger.begin_epoch(3, 9)
    assert not ledger.begin_epoch(2, 9)
    assert ledger.epoch() == (3, 7)
    assert ledger.advance(3, 8)
    assert ledger.advance(3, 5)
    assert not ledger.advance(4, 9)
    assert ledger.epoch() == (3, 8)


def test_a_new_epoch_voids_all_leases_and_counts_attempts_anew(world: World) -> None:
    ledger = world.ledger
    running = world.claimed(max_attempts=1)
    committed = world.claimed()
    ledger.commit(committed.token, Ended("succeeded"), 60.0)
    queued = world.submit()
    assert ledger.begin_epoch(2, 0)
    swept = ledger.sweep("placement", 60.0, 60.0)
    assert swept.requeued == (running.job.id,), "the attempt was not the job's fault"
    assert [claim.job.id for claim in swept.unpublished] == [committed.job.id]
    assert swept.unpublished[0].token.epoch == 2
    again = world.claim(running.job.id)
    assert (again.token.epoch, again.token.attempt, again.look_first) == (2, 1, True)
    assert [event.what for event in again.job.history] == ["lease_void"]
    assert world.claim(queued).look_first, "it was submitted in another epoch"


def test_what_is_submitted_before_the_rebuild_is_complete_is_looked_for_first(bare: World) -> None:
    ledger = bare.ledger
    assert ledger.begin_epoch(1, 0)
    early = bare.submit()
    assert ledger.advance(1, 1)
    late = bare.submit()
    assert bare.claim(early).look_first, "the settled set may not have had it yet"
    assert not bare.claim(late).look_first


def test_one_holder_at_a_time_leads_and_the_fence_grows_with_each_change(bare: World) -> None:
    ledger = bare.ledger
    first = ledger.acquire("placement", "a", 60.0)
    assert first is not None
    assert ledger.acquire("placement", "b", 60.0) is None
    assert ledger.acquire("placement", "a", 60.0) == first
    assert ledger.acquire("reconciler", "b", 60.0) is not None
    ledger.resign("placement", "b")
    assert ledger.acquire("placement", "b", 60.0) is None
    ledger.resign("placement", "a")
    second = ledger.acquire("placement", "b", 0.1)
    assert second is not None and second > first
    bare.advance(0.15)
    third = ledger.acquire("placement", "a", 60.0)
    assert third is not None and third > second


def test_functions_and_pools_are_mirrored_and_the_version_grows_with_each_change(bare: World) -> None:
    ledger = bare.ledger
    record = FunctionRecord(
        spec=FunctionSpec(name="ocr", handler="ocr:run"), revision="r1", deployed_at=1.0, triggers_since=1.0
    )
    pool = PoolSpec(name="gpu", slots=2)
    versions = [ledger.version()]

    def changed() -> bool:
        versions.append(ledger.version())
        return versions[-1] > versions[-2]

    ledger.put_function(record)
    assert changed() and ledger.functions() == {"ocr": record} and ledger.function("ocr") == record
    ledger.put_pool(pool)
    assert changed() and ledger.pools()["gpu"].spec == pool and not ledger.pools()["gpu"].draining
    assert ledger.drain_pool("gpu", True) and changed() and ledger.pools()["gpu"].draining
    assert ledger.drain_pool("gpu", False) and changed() and not ledger.pools()["gpu"].draining
    assert not ledger.drain_pool("none", True)
    assert ledger.remove_pool("gpu") and changed() and ledger.pools() == {}
    assert not ledger.remove_pool("gpu") and not changed()
    ledger.remove_function("ocr")
    assert changed() and ledger.functions() == {} and ledger.function("ocr") is None


def test_a_job_that_was_made_for_other_functions_is_not_taken(world: World) -> None:
    ledger, agent, job = world.ledger, world.agent(), world.new()
    before = ledger.version()
    ledger.put_pool(PoolSpec(name="gpu", slots=2))
    refused = ledger.submit(job, version=before)
    assert (refused.moved, refused.created, refused.state) == (True, False, None) and ledger.job(job.id) is None
    taken = ledger.submit(job, version=ledger.version())
    assert (taken.moved, taken.created) == (False, True)
    ledger.put_pool(PoolSpec(name="gpu", slots=3))
    ledger.release(job.id, agent, Placement(pool="gpu"))
    (claim,) = ledger.claim(agent, 1, 60.0)
    assert claim.version == ledger.version() > before


def test_a_draining_pool_takes_no_jobs_and_tells_its_agents(world: World) -> None:
    ledger = world.ledger
    ledger.put_pool(PoolSpec(name="gpu"))
    agent, job_id, waiting = world.agent(), world.submit(), world.submit()
    assert ledger.release(job_id, agent, Placement())
    assert ledger.drain_pool("gpu", True)
    assert not ledger.release(waiting, agent, Placement())
    assert ledger.claim(agent, 5, 60.0) == []
    assert ledger.heartbeat(AgentReport(agent, "gpu", 4)).drain
    assert world.state(job_id) == "queued"
    assert ledger.drain_pool("gpu", False)
    assert not ledger.heartbeat(AgentReport(agent, "gpu", 4)).drain
    assert ledger.release(job_id, agent, Placement())


def test_a_pool_is_mirrored_together_with_whether_it_drains(world: World) -> None:
    ledger = world.ledger
    ledger.put_pool(PoolSpec(name="gpu"), draining=True)
    assert ledger.heartbeat(AgentReport("gpu-000001", "gpu", 4)).drain
    ledger.put_pool(PoolSpec(name="gpu", slots=2))
    assert ledger.pools()["gpu"].draining, "another spec changes nothing about that"
    ledger.put_pool(PoolSpec(name="gpu"), draining=False)
    assert not ledger.heartbeat(AgentReport("gpu-000001", "gpu", 4)).drain


def test_agents_of_a_removed_pool_drain_until_the_pool_is_back(world: World) -> None:
    ledger = world.ledger
    ledger.put_pool(PoolSpec(name="gpu"))
    assert ledger.remove_pool("gpu")
    assert ledger.heartbeat(AgentReport("gpu-000001", "gpu", 4)).drain
    ledger.put_pool(PoolSpec(name="gpu"))
    assert not ledger.heartbeat(AgentReport("gpu-000001", "gpu", 4)).drain
