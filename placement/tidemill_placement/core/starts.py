"""How many agents to start: the whole backlog is played through with one more agent in each pool, the best is taken.

A start that each job would pay alone is never worth it; over the whole backlog it often is. A play is a list schedule:
each job takes the pool with the best score at that moment. Long backlogs are played by a sample in which each job
stands for several. Agents that boot already count as capacity, so a backlog is never answered twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapreplace

from tidemill_placement.core.hosts import Host
from tidemill_placement.core.objective import Goal
from tidemill_placement.core.rates import Table, capacity_of, memory_of
from tidemill_placement.core.world import Waiting, World

_SAMPLE = 48
_MOST_AT_ONCE = 16
_UNSERVED_USD = 1000.0
_LEAST_GAIN_USD = 1e-9


@dataclass(frozen=True, slots=True)
class _Piece:
    """Jobs of one kind that follow each other. `ways`: (pool, seconds p50, p90 of run and fetch, dollars of one)."""

    function: str
    weight: float
    age_s: float
    goal: Goal
    ways: tuple[tuple[str, float, float, float], ...]


def decide_starts(world: World, table: Table, hosts: Sequence[Host], jobs: Sequence[Waiting]) -> dict[str, int]:
    """Give the number of agents to start in each pool for these waiting jobs (in fair order)."""
    pools = [
        pool
        for name, pool in sorted(world.pools.items())
        if pool.can_start and not pool.draining and pool.trouble is None
    ]
    alive = _alive(world)
    room = {pool.name: pool.spec.agents.max - alive.get(pool.name, 0) for pool in pools}
    if not jobs or not any(number > 0 for number in room.values()):
        return {}
    pieces = _pieces(world, table, jobs)
    total = sum(queue.ready for queue in world.backlog)
    most = min(_MOST_AT_ONCE, total)
    free: dict[str, list[float]] = {}
    for host in hosts:
        if host.open or host.ready_s > 0:
            free.setdefault(host.pool, []).extend(max(slot.free_s, host.ready_s) for slot in host.slots)
    limits = _limits(world, hosts, pieces)
    useful = {way[0] for piece in pieces for way in piece.ways}
    load_s = max((world.estimates.load_s(piece.function) for piece in pieces), default=0.0)
    starts: dict[str, int] = {}
    now = _play(pieces, free, limits)
    while sum(starts.values()) < most:
        best: tuple[float, str, float, list[float]] | None = None
        for pool in pools:
            if pool.name not in useful or room[pool.name] <= 0:
                continue
            start_s = world.estimates.start_s(pool.spec)
            slots = _slots(world, pool.name, pieces)
            more = free.get(pool.name, []) + [start_s + load_s] * slots
            then = _play(pieces, {**free, pool.name: more}, limits)
            gain = now - then - _launch(table, pieces, pool.name)
            if gain > _LEAST_GAIN_USD and (best is None or gain > best[0]):
                best = (gain, pool.name, then, more)
        if best is None:
            break
        _, name, now, free[name] = best
        starts[name] = starts.get(name, 0) + 1
        room[name] -= 1
    return starts


def _alive(world: World) -> dict[str, int]:
    alive: dict[str, int] = {}
    for agent in world.agents:
        alive[agent.pool] = alive.get(agent.pool, 0) + 1
    return alive


def _pieces(world: World, table: Table, jobs: Sequence[Waiting]) -> list[_Piece]:
    listed: dict[str, int] = {}
    for job in jobs:
        listed[job.function] = listed.get(job.function, 0) + 1
    ready = {queue.function: queue.ready for queue in world.backlog}
    step = max(1, -(-len(jobs) // _SAMPLE))
    pieces = []
    for job in jobs[::step]:
        offer = table.offer(job.function)
        rates, _ = table.affordable(offer, job.size)
        ways = []
        for rate in rates:
            fetch_s = table.transfer_s(job.size, rate.pool)
            usd = rate.usd_per_s * (rate.p50_s + fetch_s)
            ways.append((rate.pool.name, rate.p50_s + fetch_s, rate.p90_s + fetch_s, usd))
        weight = step * max(1.0, ready.get(job.function, 0) / listed[job.function])
        age_s = max(0.0, world.now - job.created_at)
        if ways:
            pieces.append(_Piece(job.function, weight, age_s, offer.goal, tuple(ways)))
    return pieces


def _limits(world: World, hosts: Sequence[Host], pieces: Sequence[_Piece]) -> dict[str, list[float]]:
    """Give for each function whose `scaling.max` may bind the times at which its slots are free."""
    limits: dict[str, list[float]] = {}
    for function in {piece.function for piece in pieces}:
        most = world.functions[function].spec.scaling.max
        if most <= 64:
            busy = sorted(s.free_s for h in hosts for s in h.slots if s.count and s.now == function)[:most]
            limits[function] = sorted(busy + [0.0] * (most - len(busy)))
    return limits


def _slots(world: World, pool: str, pieces: Sequence[_Piece]) -> int:
    """Give the slots of a new agent that the memory of its GPU allows for what waits."""
    spec = world.pools[pool].spec
    here = {piece.function for piece in pieces if any(way[0] == pool for way in piece.ways)}
    need = max((memory_of(world.functions[function], spec) for function in here), default=0)
    return min(spec.slots, max(1, capacity_of(spec) // need)) if need else spec.slots


def _launch(table: Table, pieces: Sequence[_Piece], pool: str) -> float:
    for piece in pieces:
        for rate in table.offer(piece.function).rates:
            if rate.pool.name == pool:
                return rate.launch_usd
    return 0.0


def _play(pieces: Sequence[_Piece], free: Mapping[str, list[float]], limits: Mapping[str, list[float]]) -> float:
    """Give the score of serving all pieces from slots that are free at these times."""
    slots = {pool: sorted(times) for pool, times in free.items()}
    tokens = {function: list(times) for function, times in limits.items()}
    total = 0.0
    for piece in pieces:
        best: tuple[float, str, float, float] | None = None
        mine = tokens.get(piece.function)
        for pool, p50_s, p90_s, usd in piece.ways:
            times = slots.get(pool)
            if not times:
                continue
            begin_s = times[0] if mine is None else max(times[0], mine[0])
            # Several in a row: the one in the middle stands for all.
            middle_s = begin_s + p50_s * (piece.weight - 1) / 2
            score = piece.goal.score(middle_s + p50_s, middle_s + p90_s, usd, piece.age_s)
            if best is None or score < best[0]:
                best = (score, pool, begin_s, p50_s)
        if best is None:
            total += piece.weight * _UNSERVED_USD
            continue
        score, pool, begin_s, p50_s = best
        total += piece.weight * score
        end_s = begin_s + piece.weight * p50_s
        heapreplace(slots[pool], end_s)
        if mine is not None:
            heapreplace(mine, end_s)
    return total
