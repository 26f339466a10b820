"""Finished jobs that come back into a ledger which lost its memory: by their manifests."""

from dataclasses import replace

import pytest

from tests.contract.ledger.world import World
from tidemill.ledger.api import NewJob
from tidemill.models import Cost, Event, Job, JobError, JobState, Manifest, OutputObject, Placement

BEGAN_S = 1_700_000_000.25
ERROR = JobError(code="timeout", message="it took too long", hint="Raise limits.timeout.")


def manifest_of(new: NewJob, state: str = "failed", **values: object) -> Manifest:
    """What the bucket holds of a job that ended long ago."""
    facts: dict[str, object] = {
        "job_id": new.id,
        "function": new.function,
        "revision": "r7",
        "generation": 1,
        "state": state,
        "owner": "eva",
        "pool": "gpu",
        "agent": "gpu-000001",
        "attempt": 2,
        "input": new.input,
        "params": {"top": 3},
        "outputs": (OutputObject(bucket="out", key="k", size=1, sha256="0" * 64, name="k"),)
        if state != "failed"
        else (),
        "error": ERROR if state == "failed" else None,
        "placement": Placement(pool="gpu", reason="cheapest"),
        "cost": Cost(usd=0.5, gpu_seconds=2.0),
        "created_at": BEGAN_S,
        "started_at": BEGAN_S + 1,
        "finished_at": BEGAN_S + 3,
        "run_s": 2.0,
        "history": (Event(at=BEGAN_S + 1, what="lease_expired", attempt=1, agent="gpu-000001", detail="x"),),
    }
    return Manifest.model_validate({**facts, **values})


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled"])
def test_a_job_is_again_as_it_ended(world: World, state: str) -> None:
    manifest = manifest_of(world.new(), state)
    assert world.ledger.relist(manifest)
    facts = manifest.model_dump(exclude={"job_id", "state", "left", "run_s"})
    assert world.ledger.job(manifest.job_id) == Job.model_validate({**facts, "id": manifest.job_id, "state": state})
    assert world.ledger.counts() == {"ocr": {JobState(state): 1}}
    assert not list(world.ledger.iter_open())


def test_one_that_never_ran_shows_neither_pool_nor_times_that_it_never_had(world: World) -> None:
    nothing = {"pool": None, "agent": None, "started_at": None, "placement": None, "history": (), "attempt": 0}
    manifest = manifest_of(world.new(), "cancelled", owner="default", **nothing)
    assert world.ledger.relist(manifest)
    job = world.ledger.job(manifest.job_id)
    assert job is not None
    assert (job.pool, job.agent, job.started_at, job.placement, job.history) == (None, None, None, None, ())


def test_it_is_listed_by_state_function_owner_reason_and_time_where_it_was(world: World) -> None:
    here = world.submit()
    manifest = manifest_of(world.new())
    world.ledger.relist(manifest)
    for filters in ({"state": JobState.failed}, {"reason": "timeout"}, {"owner": "eva"}):
        assert [job.id for job in world.ledger.jobs(**filters).jobs] == [manifest.job_id]
    assert [job.id for job in world.ledger.jobs(function="ocr").jobs] == [here, manifest.job_id]
    assert [job.id for job in world.ledger.jobs(since=BEGAN_S + 1).jobs] == [here]


def test_the_stream_tells_its_input_and_its_end(world: World) -> None:
    before = world.ledger.last_position()
    manifest = manifest_of(world.new())
    world.ledger.relist(manifest)
    first, last = world.ledger.transitions(before)
    assert (first.state, first.created, first.agent) == (JobState.queued, True, None)
    assert first.summary == f"scans/{manifest.input.key}"
    assert (last.state, last.agent, last.attempt) == (JobState.failed, "gpu-000001", 2)
    assert (last.error, last.run_s) == ("timeout: it took too long", 2.0)


def test_twice_is_once(world: World) -> None:
    manifest = manifest_of(world.new())
    assert world.ledger.relist(manifest)
    after = world.ledger.last_position()
    assert not world.ledger.relist(manifest)
    assert world.ledger.last_position() == after
    assert world.ledger.counts() == {"ocr": {JobState.failed: 1}}


def test_an_open_job_stays_whatever_an_older_manifest_says(world: World) -> None:
    new = world.new()
    world.ledger.submit(replace(new, generation=2))
    assert not world.ledger.relist(manifest_of(new))
    assert not world.ledger.relist(manifest_of(new, generation=3))
    assert world.state(new.id) == "queued"


def test_a_later_generation_takes_the_place_of_an_older_end(world: World) -> None:
    claim = world.claimed()
    world.finish(claim.token, "failed", error=ERROR)
    new = replace(world.new(), id=claim.job.id)
    assert not world.ledger.relist(manifest_of(new, "succeeded"))
    assert world.ledger.relist(manifest_of(new, "succeeded", generation=2))
    job = world.ledger.job(claim.job.id)
    assert job is not None
    assert (job.generation, job.state, job.error, job.created_at) == (2, "succeeded", None, claim.job.created_at)
    assert world.ledger.counts() == {"ocr": {JobState.succeeded: 1}}
    assert not world.ledger.jobs(state=JobState.failed).jobs
    assert not world.ledger.relist(manifest_of(new))


def test_it_can_be_retried_and_is_forgotten_by_the_time_of_its_end(world: World) -> None:
    again, old = manifest_of(world.new()), manifest_of(world.new())
    assert world.ledger.relist(again) and world.ledger.relist(old)
    new = replace(world.new(), id=again.job_id, generation=2)
    assert world.ledger.submit(new).created
    assert world.ledger.expire(BEGAN_S + 3) == 0
    assert world.ledger.expire(BEGAN_S + 4) == 1
    assert world.ledger.job(old.job_id) is None
    assert world.ledger.known([old.job_id]) == [True]
    assert world.ledger.counts() == {"ocr": {JobState.queued: 1}}
