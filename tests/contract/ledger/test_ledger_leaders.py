"""What a leader writes carries the fence of its lease; a deposed one changes nothing, whichever call it makes."""

from collections.abc import Callable

import pytest

from tests.contract.ledger.world import World
from tidemill.ledger.api import Swept
from tidemill.models import FunctionRecord, FunctionSpec, Placement, PoolSpec

FUNCTION = FunctionRecord(
    spec=FunctionSpec(name="new", handler="m:f"), revision="r1", deployed_at=1.0, triggers_since=1.0
)
Call = Callable[[World, str, int | None], object]
CALLS: dict[str, Call] = {
    "release": lambda w, job, fence: w.ledger.release(job, "gpu-000001", Placement(), fence=fence),
    "note_placement": lambda w, job, fence: w.ledger.note_placement(job, Placement(reason="x"), fence=fence),
    "seize": lambda w, job, fence: w.ledger.seize(job, "placement", 60.0, fence=fence),
    "set_wanted": lambda w, job, fence: w.ledger.set_wanted("gpu-000001", {"ocr@r1": 1}, fence=fence),
    "set_grants": lambda w, job, fence: w.ledger.set_grants("other", {"gpu-000001": 1}, fence=fence),
    "set_scaling": lambda w, job, fence: w.ledger.set_scaling({"gpu": 1}, fence=fence),
    "drain_agent": lambda w, job, fence: w.ledger.drain_agent("gpu-000001", fence=fence),
    "unsettle": lambda w, job, fence: w.ledger.unsettle(["f" * 32], fence=fence),
    "put_function": lambda w, job, fence: w.ledger.put_function(FUNCTION, fence=fence),
    "put_pool": lambda w, job, fence: w.ledger.put_pool(PoolSpec(name="new"), draining=True, fence=fence),
    "remove_pool": lambda w, job, fence: w.ledger.remove_pool("old", fence=fence),
    "advance": lambda w, job, fence: w.ledger.advance(w.epoch, 99, fence=fence),
    "sweep": lambda w, job, fence: w.ledger.sweep("placement", 60.0, 0.0, fence=fence) != Swept(),
}


def snapshot(world: World, job_id: str) -> object:
    ledger = world.ledger
    agents = [(agent.name, agent.released, agent.running) for agent in ledger.agents()]
    told = ledger.heartbeat(ledger.agents()[0]) if agents else None
    lines, known = len(ledger.transitions("0")), ledger.known(["f" * 32])
    mirrors = ledger.functions(), ledger.pools(), ledger.version(), ledger.epoch()
    return ledger.job(job_id), ledger.counts(), agents, told, ledger.scaling(), lines, known, mirrors


@pytest.fixture
def job_id(world: World) -> str:
    """A waiting job, beside an agent and a job whose lease is over."""
    world.claimed(lease_s=0.0)
    world.ledger.settle(["f" * 32])
    world.ledger.put_pool(PoolSpec(name="old"))
    return world.submit()


@pytest.mark.parametrize("call", CALLS)
def test_a_deposed_leader_changes_nothing(world: World, job_id: str, call: str) -> None:
    old = world.ledger.acquire("placement", "first", 0.05)
    world.advance(0.1)
    new = world.ledger.acquire("placement", "second", 60.0)
    assert old is not None and new is not None and new > old
    before = snapshot(world, job_id)
    assert not CALLS[call](world, job_id, old)
    assert snapshot(world, job_id) == before
    assert world.ledger.submit(world.new(function="other")).agent is None, "no grant was given"
    assert CALLS[call](world, job_id, new)


@pytest.mark.parametrize("call", CALLS)
def test_a_leader_whose_lease_ran_out_may_write_until_another_one_comes(world: World, job_id: str, call: str) -> None:
    fence = world.ledger.acquire("placement", "first", 0.05)
    world.advance(0.1)
    assert CALLS[call](world, job_id, fence)


@pytest.mark.parametrize("call", CALLS)
def test_a_fence_that_the_ledger_never_gave_is_refused(world: World, job_id: str, call: str) -> None:
    before = snapshot(world, job_id)
    assert not CALLS[call](world, job_id, 7), "no lease was ever given here: this ledger is another one"
    assert snapshot(world, job_id) == before


def test_a_deposed_leader_removes_no_function(world: World) -> None:
    world.ledger.put_function(FUNCTION)
    old = world.ledger.acquire("placement", "first", 0.05)
    world.advance(0.1)
    new = world.ledger.acquire("placement", "second", 60.0)
    world.ledger.remove_function("new", fence=old)
    assert world.ledger.functions() == {"new": FUNCTION}
    world.ledger.remove_function("new", fence=new)
    assert world.ledger.functions() == {}


def test_the_lease_of_another_name_fences_nothing(world: World, job_id: str) -> None:
    fence = world.ledger.acquire("placement", "first", 60.0)
    assert world.ledger.acquire("reconciler", "gateway", 60.0) is not None
    assert world.ledger.release(job_id, "gpu-000001", Placement(), fence=fence)
