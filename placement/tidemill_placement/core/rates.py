"""What each function costs and takes in each pool, worked out once for a plan."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.models import FunctionRecord, PoolSpec
from tidemill_placement.core.filters import Exclusion, excluded, too_dear
from tidemill_placement.core.objective import Goal, goal_of
from tidemill_placement.core.predict import Estimates
from tidemill_placement.core.prices import launch_usd, usd_per_hour
from tidemill_placement.core.world import World


@dataclass(frozen=True, slots=True)
class Rate:
    """One function in one pool. `usd_per_s` is the share of an agent's price that one of its slots pays."""

    pool: PoolSpec
    p50_s: float
    p90_s: float
    load_s: float
    usd_per_s: float
    memory: int
    start_s: float
    launch_usd: float


@dataclass(frozen=True, slots=True)
class Offer:
    """All pools for one function: rates of those that may run it, and why the others may not."""

    record: FunctionRecord
    goal: Goal
    rates: tuple[Rate, ...]
    excluded: tuple[tuple[str, Exclusion], ...]


class Table:
    """Offers by function, made when first asked for. Pools come in the order of their names."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._offers: dict[str, Offer] = {}
        self.agents: dict[str, int] = {}
        for agent in world.agents:
            self.agents[agent.pool] = self.agents.get(agent.pool, 0) + (agent.state != "draining")

    def offer(self, function: str) -> Offer:
        """Give the offer of a function that exists."""
        if (found := self._offers.get(function)) is None:
            found = self._offers[function] = self._make(self._world.functions[function])
        return found

    def transfer_s(self, size_bytes: int, pool: PoolSpec) -> float:
        return self._world.estimates.transfer_s(size_bytes, pool)

    def affordable(self, offer: Offer, size_bytes: int) -> tuple[tuple[Rate, ...], tuple[tuple[str, Exclusion], ...]]:
        """Split the rates of an offer by the function's cost limit for an input of this size."""
        if offer.record.spec.placement.max_cost_usd is None:
            return offer.rates, offer.excluded
        rates, out = [], list(offer.excluded)
        for rate in offer.rates:
            usd = rate.usd_per_s * (rate.p50_s + self.transfer_s(size_bytes, rate.pool))
            if exclusion := too_dear(offer.record.spec, usd):
                out.append((rate.pool.name, exclusion))
            else:
                rates.append(rate)
        return tuple(rates), tuple(out)

    def _make(self, record: FunctionRecord) -> Offer:
        world, rates, out = self._world, [], []
        for name in sorted(world.pools):
            pool = world.pools[name]
            if exclusion := excluded(record.spec, pool, self.agents.get(name, 0)):
                out.append((name, exclusion))
            else:
                rates.append(rate_of(record, pool.spec, world.estimates, world.rules.idle_timeout_s))
        return Offer(record, goal_of(record.spec, world.rules), tuple(rates), tuple(out))


def rate_of(record: FunctionRecord, pool: PoolSpec, estimates: Estimates, idle_timeout_s: float) -> Rate:
    """Give the rate of a function in a pool, whether it may run there or not."""
    memory = memory_of(record, pool)
    run = estimates.run(record.name, pool, record.spec.resources.gpu is not None)
    share = max(1 / pool.slots, memory / capacity_of(pool) if memory else 0.0)
    start_s = estimates.start_s(pool)
    idle_s = pool.idle_timeout if pool.idle_timeout != "auto" else idle_timeout_s
    return Rate(
        pool=pool,
        p50_s=run.p50,
        p90_s=run.p90,
        load_s=estimates.load_s(record.name),
        usd_per_s=(usd_per_hour(pool) or 0.0) / 3600 * share,
        memory=memory,
        start_s=start_s,
        launch_usd=launch_usd(pool, start_s, idle_s),
    )


def capacity_of(pool: PoolSpec) -> int:
    """Bytes of GPU memory that may be promised on one agent; 0 for a CPU pool."""
    return int(pool.gpu.memory * pool.gpu.oversubscribe) if pool.gpu else 0


def memory_of(record: FunctionRecord, pool: PoolSpec) -> int:
    """Bytes of GPU memory that one slot of a function is promised there: an exclusive one takes all."""
    gpu = record.spec.resources.gpu
    if gpu is None or pool.gpu is None:
        return 0
    return capacity_of(pool) if gpu.sharing == "exclusive" else gpu.memory
