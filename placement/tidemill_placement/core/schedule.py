"""Late binding: which waiting jobs go to an agent now, and what the others wait for.

Jobs are judged in fair order. Each is offered the soonest slot of every pool: free ones, busy ones at the time when
they become free, agents that boot at the time when they are there. The best score wins. A job whose best slot is free
is released. One whose best slot is busy waits, unbound, though a slower slot may be free: it can change its mind for
nothing, and its booking keeps the slot's future from those behind it.

Released beyond free slots are only: one job for each agent whose slot will be free when the input is there, and short
jobs, up to `group_s` seconds of work for each slot (a message for each would cost more than the job). Neither where the
agent has a free slot too in which it would run them at once, beyond a function's slots or a GPU's memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tidemill_placement.core.filters import Exclusion
from tidemill_placement.core.hosts import Host, held_slots
from tidemill_placement.core.rates import Offer, Rate, Table
from tidemill_placement.core.world import Waiting, World


@dataclass(frozen=True, slots=True)
class Option:
    """One pool for one job; `host` None is an agent that would have to be started. Times in seconds from now."""

    rate: Rate
    host: Host | None
    slot: int
    wait_s: float
    p50_s: float
    p90_s: float
    usd: float
    score: float


@dataclass(frozen=True, slots=True)
class Choice:
    """A judged job: its options, best first, and the pools that are out. `full`: its function uses all its slots."""

    job: Waiting
    offer: Offer
    options: tuple[Option, ...]
    excluded: tuple[tuple[str, Exclusion], ...]
    full: bool = False

    @property
    def best(self) -> Option | None:
        """The best option on an agent that is there or asked for."""
        return next((option for option in self.options if option.host is not None), None)


@dataclass(slots=True)
class Schedule:
    """The hosts with all bookings in them, and the judged jobs."""

    world: World
    table: Table
    hosts: dict[str, list[Host]]
    held: dict[str, int]
    releases: list[Choice] = field(default_factory=list)
    waiting: list[Choice] = field(default_factory=list)

    def judge(self, job: Waiting, rivals: int = 1) -> Choice:
        """Give the options of a job. `rivals` jobs would share the cost of starting an agent."""
        offer = self.table.offer(job.function)
        rates, out = self.table.affordable(offer, job.size)
        full = self.held.get(job.function, 0) >= offer.record.spec.scaling.max
        age_s = max(0.0, self.world.now - job.created_at)
        options = []
        for rate in rates:
            fetch_s = self.table.transfer_s(job.size, rate.pool)
            usd = rate.usd_per_s * (rate.p50_s + fetch_s)
            found: tuple[float, int, int] | None = None
            host: Host | None = None
            for candidate in self.hosts.get(rate.pool.name, ()):
                best = candidate.best(job.function, rate, full)
                if best is not None and (found is None or best < found):
                    found, host = best, candidate
            if host is None:
                if full or not self._could_start(rate):
                    continue
                found = (rate.start_s + rate.load_s, 0, -1)
                usd += rate.launch_usd / max(1, rivals)
            assert found is not None
            # The input travels while the slot is still busy.
            begin_s = max(found[0], fetch_s)
            p50_s, p90_s = begin_s + rate.p50_s, begin_s + rate.p90_s
            score = offer.goal.score(p50_s, p90_s, usd, age_s)
            options.append(Option(rate, host, found[2], found[0], p50_s, p90_s, usd, score))
        options.sort(key=lambda option: (option.score, option.p50_s, option.rate.pool.name))
        return Choice(job, offer, tuple(options), out, full)

    def releasable(self, choice: Choice, option: Option) -> bool:
        """Whether a job may be bound to this slot now."""
        host, rules = option.host, self.world.rules
        if host is None or not host.open:
            return False
        slot = host.slots[option.slot]
        if slot.next is not None:  # promised to an older job
            return False
        if slot.free_s <= 0 and not slot.count:
            return not option.rate.memory or option.wait_s <= option.rate.load_s
        if choice.job.attempt or slot.now != choice.job.function:  # what may have killed a runner is tried alone
            return False
        if self._spills(choice, option, host):
            return False
        if option.rate.p50_s <= rules.group_s / 2:
            return slot.free_s + option.rate.p50_s <= rules.group_s and slot.count < rules.group_max
        fetch_s = self.table.transfer_s(choice.job.size, option.rate.pool)
        return host.ahead == 0 and slot.free_s <= max(fetch_s, rules.ahead_s)

    def _spills(self, choice: Choice, option: Option, host: Host) -> bool:
        """Whether the agent would run the job beside the one that it is bound behind, though it must not: an agent uses
        the slots that it has."""
        free = host.free_slot()
        return free is not None and (choice.full or not host.fits(option.rate.memory, free))

    def book(self, choice: Choice, option: Option, release: bool) -> None:
        """Write a job into the calendar of its host."""
        host = option.host
        assert host is not None
        function = choice.job.function
        until_s = option.wait_s + option.rate.p50_s
        if host.book(option.slot, function, option.rate.memory, until_s, release):
            self.held[function] = self.held.get(function, 0) + 1

    def _could_start(self, rate: Rate) -> bool:
        pool = self.world.pools[rate.pool.name]
        room = pool.spec.agents.max > self.table.agents.get(pool.name, 0)
        return room and pool.can_start and pool.trouble is None


def schedule(world: World, table: Table, hosts: Sequence[Host], jobs: Iterable[Waiting]) -> Schedule:
    """Judge jobs in the given order until all slots are promised well beyond what a plan needs."""
    by_pool: dict[str, list[Host]] = {}
    for host in hosts:
        if host.open or host.ready_s > 0:
            by_pool.setdefault(host.pool, []).append(host)
    result = Schedule(world, table, by_pool, held_slots(hosts))
    rivals = {queue.function: queue.ready for queue in world.backlog}
    enough = 2 * sum(len(host.slots) for hosts in by_pool.values() for host in hosts) + world.rules.notes
    for job in jobs:
        if len(result.waiting) >= enough:
            break
        choice = result.judge(job, rivals.get(job.function, 1))
        best = choice.best
        if best is None:
            result.waiting.append(choice)
            continue
        release = result.releasable(choice, best)
        result.book(choice, best, release)
        (result.releases if release else result.waiting).append(choice)
    return result
