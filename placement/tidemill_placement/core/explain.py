"""Why a job runs where it runs, or what it waits for: one line for people, and all candidates for the record."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.models import Candidate, Placement
from tidemill_placement.core.schedule import Choice, Option
from tidemill_placement.core.words import duration, money


def placement_of(choice: Choice, released: bool) -> Placement:
    """Give the placement that is stored with a job."""
    best = choice.best
    pool = best.rate.pool.name if best is not None else None
    return Placement(pool=pool, reason=reason_of(choice, best, released), candidates=candidates_of(choice))


def reason_of(choice: Choice, best: Option | None, released: bool) -> str:
    out = [f"{pool} excluded: {exclusion.reason}" for pool, exclusion in choice.excluded]
    if best is None:
        return "; ".join([_nowhere(choice), *out])
    name = best.rate.pool.name
    head = f"{name}: {duration(best.p50_s)} at {money(best.usd)}"
    if not released:
        head = f"{_wait(best)}, then {duration(best.p50_s - best.wait_s)} at {money(best.usd)}"
    place = choice.options.index(best)
    if worse := choice.options[place + 1 :]:
        head += f" beats {_list(worse)} {choice.offer.goal.words}"
    elif place == 0:
        head += ", the only pool that may run it" if out else ", the only pool"
    if better := choice.options[:place]:  # would have to be started, and the whole backlog does not pay for it
        out.insert(0, f"{_list(better)} would not repay the start")
    return "; ".join([head, *out])


def _nowhere(choice: Choice) -> str:
    if choice.options:
        return f"waits: {choice.options[0].rate.pool.name} would not repay its start yet"
    if choice.full:
        return f"waits: the function uses all of its slots (scaling.max is {choice.offer.record.spec.scaling.max})"
    return "waits: no pool is open"


def _list(options: Sequence[Option]) -> str:
    return ", ".join(f"{o.rate.pool.name} ({duration(o.p50_s)}, {money(o.usd)})" for o in options)


def candidates_of(choice: Choice) -> tuple[Candidate, ...]:
    judged = tuple(
        Candidate(
            pool=option.rate.pool.name,
            seconds_p50=round(option.p50_s, 4),
            seconds_p90=round(option.p90_s, 4),
            usd=round(option.usd, 10),
            score=round(option.score, 10),
        )
        for option in choice.options
    )
    return judged + tuple(Candidate(pool=pool, excluded_because=e.reason) for pool, e in choice.excluded)


def _wait(option: Option) -> str:
    pool = option.rate.pool.name
    if option.host is not None and option.host.ready_s > 0:
        return f"waits for an agent of {pool} to start (about {duration(option.wait_s)})"
    return f"waits for a slot of {pool} (about {duration(option.wait_s)})"
