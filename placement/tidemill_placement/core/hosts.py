"""The calendar of each agent: when its slots are free, which function's runner sits in them, who is booked next.

Times are seconds from now. A slot that holds a function's runner takes that function's next job without a load. Booked
jobs push a slot's time, so that later jobs in the same plan see an occupied future.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tidemill_placement.core.rates import Rate, capacity_of, memory_of, rate_of
from tidemill_placement.core.world import Agent, Task, World

_RECENT_S = 5.0  # a runner used this recently is taken as there, though the agent's last report may be older
_UNKNOWN_S = 1.0  # what is left of a job that the ledger counts and nobody has told us of
_SOONEST_S = 0.001


@dataclass(slots=True)
class Slot:
    """`count` jobs are bound to it now, of function `now`; `next` is the first function booked for later."""

    free_s: float = 0.0
    function: str | None = None
    memory: int = 0
    count: int = 0
    now: str | None = None
    next: str | None = None

    @property
    def held(self) -> bool:
        return self.count > 0 or self.next is not None


@dataclass(slots=True)
class Host:
    """An agent's slots. `ready_s` > 0: it boots until then. `ahead`: jobs bound beyond one for each slot."""

    name: str
    pool: str
    slots: list[Slot]
    capacity: int = 0
    ready_s: float = 0.0
    open: bool = True
    ahead: int = 0
    bound: int = 0
    _best: dict[tuple[str, bool], tuple[float, int, int] | None] = field(default_factory=dict)

    def best(self, function: str, rate: Rate, only_held: bool) -> tuple[float, int, int] | None:
        """Give (seconds until a job of the function could begin, minus the bound jobs, slot), or None.

        Hosts compare by it: sooner first, then the busier one, so that the others can become idle and stop.
        """
        key = (function, only_held)
        if key in self._best:
            return self._best[key]
        best: tuple[float, int, int] | None = None
        for index, slot in enumerate(self.slots):
            same = slot.function == function
            if only_held and not (same and slot.held):
                continue
            begin_s = slot.free_s if slot.free_s > self.ready_s else self.ready_s
            if rate.memory:
                begin_s = max(begin_s, self._fits_at(rate.memory, index))
            if not same:
                begin_s += rate.load_s
            if best is None or begin_s < best[0]:
                best = (begin_s, -self.bound, index)
        self._best[key] = best
        return best

    def free_slot(self) -> int | None:
        """Give a slot that no job is bound to: a job behind a busy one would begin there at once."""
        return next((index for index, slot in enumerate(self.slots) if not slot.count), None)

    def fits(self, memory: int, index: int) -> bool:
        """Whether that much memory is left for a runner in this slot now."""
        return self._fits_at(memory, index) <= 0

    def book(self, index: int, function: str, memory: int, until_s: float, release: bool) -> bool:
        """Put a job into a slot, now or later. Gives whether the function holds one slot more than before."""
        slot = self.slots[index]
        more = not (slot.held and slot.function == function)
        if release:
            slot.now = function
            self.ahead += slot.count > 0
            slot.count += 1
            self.bound += 1
        elif slot.next is None:
            slot.next = function
        slot.function, slot.memory, slot.free_s = function, memory, until_s
        self._best.clear()
        return more

    def _fits_at(self, memory: int, index: int) -> float:
        """Give when the held slots other than this one leave room; runners that idle are stopped for it."""
        held = sorted((s.free_s, s.memory) for i, s in enumerate(self.slots) if i != index and s.held)
        used = sum(size for _, size in held)
        at_s = 0.0
        for free_s, size in held:
            if used + memory <= self.capacity:
                break
            used, at_s = used - size, free_s
        return at_s


def hosts_of(world: World) -> list[Host]:
    """Give the calendars of all agents whose pool exists, by name."""
    tasks: dict[str, list[Task]] = {}
    for task in world.tasks:
        tasks.setdefault(task.agent, []).append(task)
    return [
        _host(world, agent, tasks.get(agent.name, ()))
        for agent in sorted(world.agents, key=lambda agent: agent.name)
        if agent.pool in world.pools
    ]


def new_host(world: World, pool: str, number: int, ready_s: float) -> Host:
    """Give the calendar of an agent that this plan starts."""
    spec = world.pools[pool].spec
    return Host(f"~{pool}-{number}", pool, [Slot() for _ in range(spec.slots)], capacity_of(spec), ready_s, open=False)


def held_slots(hosts: Iterable[Host]) -> dict[str, int]:
    """Count the slots that each function holds now."""
    held: dict[str, int] = {}
    for host in hosts:
        for slot in host.slots:
            if slot.count and slot.now is not None:
                held[slot.now] = held.get(slot.now, 0) + 1
    return held


def _host(world: World, agent: Agent, tasks: Iterable[Task]) -> Host:
    spec = world.pools[agent.pool].spec
    host = Host(agent.name, agent.pool, [Slot() for _ in range(agent.slots)], capacity_of(spec))
    known = sorted(tasks, key=lambda task: (not task.running, task.since, task.job_id))
    for task in known:
        _occupy(world, host, task)
    for _ in range(agent.released + agent.running - len(known)):
        slot = min(host.slots, key=lambda slot: slot.free_s)
        slot.free_s += _UNKNOWN_S
        slot.count += 1
    host.bound = sum(slot.count for slot in host.slots)
    host.ahead = host.bound - sum(slot.count > 0 for slot in host.slots)
    for function, number in sorted(_warm(world, agent).items()):
        record = world.functions[function]
        for slot in host.slots:
            number -= slot.function == function
        for slot in host.slots:
            if number > 0 and slot.function is None and not slot.count:
                slot.function, slot.memory = function, memory_of(record, spec)
                number -= 1
    host.open = agent.state == "ready" and not world.pools[agent.pool].draining
    if agent.state == "booting":
        host.ready_s = max(agent.since + world.estimates.start_s(spec) - world.now, 0.1)
    return host


def _occupy(world: World, host: Host, task: Task) -> None:
    spec = world.pools[host.pool].spec
    record = world.functions.get(task.function)
    left_s, memory = _UNKNOWN_S, 0
    if record is not None:
        rate = rate_of(record, spec, world.estimates, world.rules.idle_timeout_s)
        memory = rate.memory
        fetch_s = world.estimates.transfer_s(task.size, spec)
        passed_s = max(0.0, world.now - task.since) if task.running else 0.0
        left_s = rate.p50_s + fetch_s - passed_s
        if left_s <= 0:
            left_s = max(rate.p90_s + fetch_s - passed_s, 0.25 * rate.p50_s)
    # One more of a short function belongs behind its like, for runners are not changed for it.
    slot = min(host.slots, key=lambda slot: (slot.count > 0, slot.free_s))
    slot.free_s += max(left_s, _SOONEST_S)
    slot.count += 1
    slot.function, slot.memory, slot.now = task.function, memory, task.function


def _warm(world: World, agent: Agent) -> Mapping[str, int]:
    """Count the runners of current revisions on an agent: as reported, or seen at work a moment ago."""
    warm: dict[str, int] = {}
    for runner in agent.runners:
        record = world.functions.get(runner.function)
        if record is not None and record.revision == runner.revision:
            warm[runner.function] = warm.get(runner.function, 0) + runner.slots
    for function, times in agent.levels.items():
        if function in world.functions:
            recent = sum(world.now - at < _RECENT_S for at in times)
            warm[function] = max(warm.get(function, 0), recent)
    return warm
