"""Which runners each agent shall hold, and which agents shall go.

In this order, as long as an agent has slots (and GPU memory, and the function's `scaling.max`) left: what runs or is
released there now; what the plan has booked next; what was in use within its idle time, the latest first. Runners of
old revisions are wanted nowhere. `scaling.min` is filled up in the cheapest pool. An agent for which nothing is wanted
and that has been quiet for the pool's idle time stops, the last one to become quiet first, down to `agents.min`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidemill.models import FunctionRecord, PoolSpec
from tidemill_placement.core.hosts import Host
from tidemill_placement.core.rates import Table, capacity_of, memory_of
from tidemill_placement.core.world import Agent, World, runner_key


@dataclass(slots=True)
class Wanted:
    """Wanted slots by agent and function, with the bookkeeping that keeps them within limits."""

    world: World
    slots: dict[str, int]
    memory: dict[str, int]
    by_agent: dict[str, dict[str, int]] = field(default_factory=dict)
    total: dict[str, int] = field(default_factory=dict)

    def add(self, agent: str, pool: PoolSpec, record: FunctionRecord, forced: bool = False) -> bool:
        """Want one slot more, if it fits. `forced`: it is in use already."""
        need = memory_of(record, pool)
        over = self.total.get(record.name, 0) >= record.spec.scaling.max
        if self.slots[agent] <= 0 or (not forced and (over or need > self.memory[agent])):
            return False
        self.slots[agent] -= 1
        self.memory[agent] -= need
        mine = self.by_agent.setdefault(agent, {})
        mine[record.name] = mine.get(record.name, 0) + 1
        self.total[record.name] = self.total.get(record.name, 0) + 1
        return True


def decide_wanted(world: World, table: Table, hosts: Sequence[Host]) -> tuple[Wanted, dict[str, int]]:
    """Give the wanted slots, and the agents to start in each pool because a function's `scaling.min` has no room."""
    agents = {agent.name: agent for agent in world.agents if agent.pool in world.pools}
    mine = [host for host in hosts if host.name in agents]
    wanted = Wanted(
        world,
        {name: agent.slots for name, agent in agents.items()},
        {name: capacity_of(world.pools[agent.pool].spec) for name, agent in agents.items()},
    )
    keep: list[tuple[float, str, str]] = []
    later: list[tuple[str, str]] = []
    for host in mine:
        for slot in host.slots:
            if slot.now in world.functions and slot.now is not None:
                _add(wanted, agents[host.name], slot.now, forced=True)
            elif slot.next in world.functions and slot.next is not None:
                later.append((host.name, slot.next))
    for name, function in later:
        _add(wanted, agents[name], function)
    for name, agent in agents.items():
        if agent.state == "draining" or world.pools[agent.pool].draining:
            continue
        spec = world.pools[agent.pool].spec
        for function, times in agent.levels.items():
            if (record := world.functions.get(function)) is None:
                continue
            idle_s = idle_timeout_s(world, record, spec)
            used = wanted.by_agent.get(name, {}).get(function, 0)
            keep += [(-at, name, function) for at in times[used:] if world.now - at < idle_s]
    for _, name, function in sorted(keep):
        _add(wanted, agents[name], function)
    starts = _fill_minimum(world, table, wanted, agents)
    return wanted, starts


def named(world: World, wanted: Wanted) -> dict[str, dict[str, int]]:
    """Give wanted slots under the names of the current revisions, also empty ones."""
    result: dict[str, dict[str, int]] = {agent.name: {} for agent in world.agents}
    for agent, functions in wanted.by_agent.items():
        result[agent] = {runner_key(world.functions[f]): n for f, n in sorted(functions.items())}
    return result


def decide_stops(world: World, wanted: Wanted, hosts: Sequence[Host]) -> tuple[str, ...]:
    """Give the agents to stop: those that drain as soon as they have nothing left, others after their idle time."""
    bound = {host.name: host for host in hosts}
    alive: dict[str, int] = {}
    idle: list[tuple[float, Agent]] = []
    stops: list[str] = []
    for agent in world.agents:
        host = bound.get(agent.name)
        busy = agent.released + agent.running > 0 or (host is not None and any(slot.held for slot in host.slots))
        if agent.state == "draining":
            stops += [agent.name] if agent.managed and not busy else []
            continue
        alive[agent.pool] = alive.get(agent.pool, 0) + 1
        if agent.state == "ready" and agent.managed and not busy and not wanted.by_agent.get(agent.name):
            idle.append((max(agent.quiet_since, agent.since), agent))
    for quiet_since, agent in sorted(idle, key=lambda entry: (-entry[0], entry[1].name)):
        pool = world.pools.get(agent.pool)
        if pool is not None and not pool.draining:
            if alive[agent.pool] <= pool.spec.agents.min:
                continue
            surplus = alive[agent.pool] > pool.spec.agents.max
            if not surplus and world.now - quiet_since < _pool_idle_s(world, pool.spec):
                continue
        alive[agent.pool] -= 1
        stops.append(agent.name)
    return tuple(sorted(stops))


def idle_timeout_s(world: World, record: FunctionRecord, pool: PoolSpec) -> float:
    """Give how long an idle runner stays: the function's word, else the pool's, else the operator's."""
    own = record.spec.scaling.idle_timeout
    return own if own != "auto" else _pool_idle_s(world, pool)


def _pool_idle_s(world: World, pool: PoolSpec) -> float:
    return pool.idle_timeout if pool.idle_timeout != "auto" else world.rules.idle_timeout_s


def _add(wanted: Wanted, agent: Agent, function: str, forced: bool = False) -> None:
    wanted.add(agent.name, wanted.world.pools[agent.pool].spec, wanted.world.functions[function], forced)


def _fill_minimum(world: World, table: Table, wanted: Wanted, agents: Mapping[str, Agent]) -> dict[str, int]:
    starts: dict[str, int] = {}
    room: dict[str, int] = {}  # slots of the agents that this very function starts
    for name in sorted(world.functions):
        record = world.functions[name]
        missing = record.spec.scaling.min - wanted.total.get(name, 0)
        if missing <= 0 or record.deleted_at is not None:
            continue
        rates = sorted(table.offer(name).rates, key=lambda rate: (rate.usd_per_s, rate.pool.name))
        for rate in rates:
            here = [a for a in agents.values() if a.pool == rate.pool.name and a.state != "draining"]
            for agent in sorted(here, key=lambda a: (name not in a.levels, a.name)):
                while missing > 0 and wanted.add(agent.name, rate.pool, record):
                    missing -= 1
        for rate in rates:
            pool = world.pools[rate.pool.name]
            while missing > 0:
                if room.get(pool.name, 0) <= 0:
                    alive = sum(a.pool == pool.name for a in agents.values()) + starts.get(pool.name, 0)
                    if alive >= pool.spec.agents.max or not pool.can_start or pool.trouble is not None:
                        break
                    starts[pool.name] = starts.get(pool.name, 0) + 1
                    fits = capacity_of(pool.spec) // rate.memory if rate.memory else pool.spec.slots
                    room[pool.name] = max(1, min(pool.spec.slots, fits))
                room[pool.name] -= 1
                missing -= 1
    return starts
