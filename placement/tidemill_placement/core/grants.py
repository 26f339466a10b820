"""Grants: on an idle system the next submits of a function may go straight to a warm, free slot.

They are left only where the planner would release a job just now: in the pool with the best score, on slots that hold
the function's runner and do nothing. So a submit that uses one decides nothing by itself. Slots that are left over when
every waiting job is released are granted too: of jobs that come one after the other, none would find a quiet moment.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tidemill_placement.core.explain import placement_of
from tidemill_placement.core.schedule import Schedule
from tidemill_placement.core.world import Grant, Waiting


def decide_grants(
    schedule: Schedule, wanted: Mapping[str, Mapping[str, int]], stops: Collection[str]
) -> dict[str, Grant]:
    """Give the grants of each function that has some. Only where no job waits but those that this plan releases.

    Runners that are to go, and agents that stop, get none.
    """
    world = schedule.world
    warm = {
        slot.function
        for hosts in schedule.hosts.values()
        for host in hosts
        for slot in host.slots
        if slot.function is not None and not slot.held
    }
    grants = {}
    for function in sorted(warm & set(world.functions)):
        choice = schedule.judge(Waiting("", function, "", world.now))
        best = choice.best
        if best is None or best is not choice.options[0] or not schedule.releasable(choice, best):
            continue
        room = choice.offer.record.spec.scaling.max - schedule.held.get(function, 0)
        agents: dict[str, int] = {}
        for host in schedule.hosts[best.rate.pool.name]:
            if not host.open or host.name in stops:
                continue
            mine = [slot for slot in host.slots if slot.function == function]
            kept = wanted.get(host.name, {}).get(function, 0) - sum(slot.held for slot in mine)
            free = min(sum(not slot.held for slot in mine), len(host.slots) - host.bound, kept, room)
            if free > 0:
                agents[host.name] = free
                room -= free
        if agents:
            grants[function] = Grant(agents, placement_of(choice, released=True))
    return grants
