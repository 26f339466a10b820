"""Planners and sweeps whose leader was replaced: each write of theirs is refused."""

from typing import Any

from tests.support.house import House, job_id
from tidemill.ledger.api import AgentReport
from tidemill.models import JobState, PoolSpec
from tidemill_placement.scalers import AgentState


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
    house.submit(job_id(1))
    house.submit(job_id(2), "lost")
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
    assert house.state(job_id(1)) is JobState.queued and house.state(job_id(2)) is JobState.queued
    assert house.bell.rings == []
    assert house.ledger.scaling() == {}
    assert not house.ledger.heartbeat(AgentReport("p-a", "p", 1)).told
    # It leads again: what was refused is done now, nothing is taken for done.
    house.now += 6.5
    house.planner._ledger = real_plan
    _leads(house, "first")
    house.beat("p-a")
    house.turn()
    assert house.state(job_id(1)) is JobState.released and house.state(job_id(2)) is JobState.failed
    assert house.ledger.heartbeat(AgentReport("p-a", "p", 1)).wanted == {"ocr@r1": 1}
    assert house.ledger.scaling() != {}


def test_the_sweep_of_a_deposed_leader_takes_no_job(house: House) -> None:
    house.function()
    house.pool()
    house.beat("p-a")
    _leads(house, "first")
    house.submit(job_id(1))
    house.turn()
    assert len(house.ledger.claim("p-a", 1, 1.0)) == 1
    house.now += 6.5
    assert house.ledger.acquire("placement", "second", 6.0) is not None
    assert house.sweeper.sweep() == 0
    assert house.state(job_id(1)) is JobState.running


def test_a_leader_that_was_replaced_in_its_turn_starts_no_agent(house: House) -> None:
    house.function()
    house.pool()
    _leads(house, "first")
    house.submit(job_id(1))
    house.submit(job_id(2))
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
    house.submit(job_id(1))
    house.submit(job_id(2))
    start, first = house.processes.start, house.lead.fence

    def slow(pool: PoolSpec, agent: str) -> None:
        start(pool, agent)
        house.now += 6.5
        assert house.ledger.acquire("placement", "second", 6.0) != first

    house.processes.start = slow  # type: ignore[method-assign]
    house.turn()
    assert house.processes.starts == 1
