"""The whole decision: filters, order, starts, late binding, warm runners, grants.

A receding horizon: each plan looks at everything that waits and binds only what can begin now. The next plan, a moment
later, starts afresh from the world as it then is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemill.models import Placement
from tidemill_placement.core.explain import candidates_of, placement_of
from tidemill_placement.core.filters import Exclusion
from tidemill_placement.core.grants import decide_grants
from tidemill_placement.core.hosts import hosts_of, new_host
from tidemill_placement.core.order import fair_order
from tidemill_placement.core.rates import Table
from tidemill_placement.core.schedule import Choice, schedule
from tidemill_placement.core.starts import decide_starts
from tidemill_placement.core.wanted import decide_stops, decide_wanted, named
from tidemill_placement.core.world import Impossible, Plan, Release, Waiting, World


def plan(world: World) -> Plan:
    """Decide what to do in this world now."""
    table = Table(world)
    possible, impossible = _sort_out(world, table)
    hosts = hosts_of(world)
    starts = decide_starts(world, table, hosts, possible)
    _raise_to_minimum(world, starts)
    booked = hosts + [
        new_host(world, pool, number, world.estimates.start_s(world.pools[pool].spec))
        for pool, count in sorted(starts.items())
        for number in range(count)
    ]
    result = schedule(world, table, booked, possible)
    wanted, for_minimum = decide_wanted(world, table, booked)
    for pool, count in for_minimum.items():
        starts[pool] = max(starts.get(pool, 0), count)
    stops = decide_stops(world, wanted, booked)
    waits = sum(queue.ready for queue in world.backlog) > len(result.releases)
    by_agent = named(world, wanted)
    return Plan(
        releases=tuple(_release(choice) for choice in result.releases),
        wanted=by_agent,
        starts=dict(sorted(starts.items())),
        stops=stops,
        grants={} if waits else decide_grants(result, wanted.by_agent, stops),
        impossible=impossible,
        notes=tuple((c.job.id, placement_of(c, released=False)) for c in result.waiting[: world.rules.notes]),
        scaling=_scaling(world, wanted.by_agent, starts, stops),
    )


def _sort_out(world: World, table: Table) -> tuple[list[Waiting], tuple[Impossible, ...]]:
    """Part the waiting jobs: those that some pool may run one day, in fair order, and those that none ever can.

    Without any pool everything waits: a system that has just begun knows none yet.
    """
    possible: list[Waiting] = []
    impossible: list[Impossible] = []
    for queue in sorted(world.backlog, key=lambda queue: queue.function):
        if queue.function not in world.functions:
            continue
        offer = table.offer(queue.function)
        for job in queue.jobs:
            rates, out = table.affordable(offer, job.size)
            if rates or not out or not all(exclusion.permanent for _, exclusion in out):
                possible.append(job)
                continue
            reason = _never(out)
            candidates = candidates_of(Choice(job, offer, (), out))
            impossible.append(Impossible(job.id, job.function, reason, Placement(reason=reason, candidates=candidates)))
    return fair_order(possible), tuple(impossible)


def _never(out: Sequence[tuple[str, Exclusion]]) -> str:
    return "no pool can ever run it: " + "; ".join(f"{pool}: {exclusion.reason}" for pool, exclusion in out)


def _raise_to_minimum(world: World, starts: dict[str, int]) -> None:
    for name, pool in sorted(world.pools.items()):
        alive = sum(agent.pool == name and agent.state != "draining" for agent in world.agents)
        present = sum(agent.pool == name for agent in world.agents)
        missing = min(pool.spec.agents.min - alive, pool.spec.agents.max - present)
        if missing > starts.get(name, 0) and pool.can_start and not pool.draining and pool.trouble is None:
            starts[name] = missing


def _release(choice: Choice) -> Release:
    best = choice.best
    assert best is not None
    assert best.host is not None
    return Release(choice.job.id, choice.job.function, best.host.name, placement_of(choice, released=True))


def _scaling(
    world: World, wanted: Mapping[str, Mapping[str, int]], starts: Mapping[str, int], stops: Sequence[str]
) -> dict[str, int]:
    numbers = {pool: starts.get(pool, 0) for pool in sorted(world.pools)}
    for agent in world.agents:
        if agent.pool in numbers and agent.state != "draining" and agent.name not in stops:
            numbers[agent.pool] += 1
        for function, slots in wanted.get(agent.name, {}).items():
            key = f"{agent.pool}/{function}"
            numbers[key] = numbers.get(key, 0) + slots
    return numbers
