"""From a seed to what is dropped and what goes wrong, and when. Pure: the same arguments give the same plan."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

#: Kinds of faults, as `--faults` names them, and what each one may be.
KINDS: dict[str, tuple[str, ...]] = {
    "kill": ("runner", "agent", "agent", "gateway", "placement", "flower"),
    "pause": ("runner", "agent", "agent", "gateway", "placement", "redis", "store"),
    "connection": ("cut", "reset", "latency", "throttle", "silence", "slice", "tear"),
    "redis": ("kill", "flush", "restore", "fill", "kick"),
    "store": ("kill",),
    "events": ("drop", "double", "shuffle", "junk"),
    "failpoints": ("kill", "kill", "delay", "raise"),
    "outage": ("all",),
    "clock": ("skew",),
    "disk": ("redis", "store", "agent"),
}
WEIGHTS = {"kill": 5, "pause": 3, "connection": 5, "redis": 3, "store": 1, "events": 2, "failpoints": 5, "outage": 0.7}
DISKS_EVERY = 12  # gaps between two full disks, on average: a store takes seconds to start again
#: Where a process may be made to die: patterns of failpoints.
PLACES = (
    "attempt.claimed",
    "attempt.fetched",
    "attempt.ran",
    "attempt.packed",
    "attempt.input_looked_at",
    "attempt.log_stored",
    "ending.committed",
    "ending.ledger_told",
    "ending.published",
    "publish.looked_around",
    "publish.output_written",
    "accept.payload_stored",
    "accept.request_stored",
    "accept.submitted",
    "intake.looked_at",
    "intake.submitted",
    "reconciler.page_asked",
    "plan.released",
    "sweep.swept",
    "sweep.rung",
    "rebuild.*",
    "epoch.*",
)
LINES = ("control", "near", "far")  # whose connections; each has its own way to Redis and to the store
FIRST_S = 3.0  # a moment of peace, so that something runs when the first fault comes


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `at_s`: from the start of the run; `lasts_s` 0: it happens in an instant; `luck` chooses victims."""

    at_s: float
    kind: str
    what: str
    lasts_s: float = 0.0
    luck: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        facts = " ".join(f"{name}={value}" for name, value in self.facts.items())
        lasts = f" for {self.lasts_s:.1f} s" if self.lasts_s else ""
        return f"{self.at_s:6.1f} s  {self.kind:<10} {self.what:<9}{lasts} {facts}".rstrip()


@dataclass(frozen=True, slots=True)
class Drop:
    """One input. `way`: put, presigned, call, named; `want`: small, large, many, fail. `twist`: what happens to it
    besides: overwrite, delete, cancel, again (the same call once more), retry (once it is over), or nothing."""

    number: int
    at_s: float
    way: str
    want: str
    run_s: float
    twist: str = ""


def chosen(entries: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Give the faults of each kind that `kind`, `kind:what` and `failpoints:what:place` ask for.

    Raises:
        ValueError: there is no such fault.
    """
    found: dict[str, tuple[str, ...]] = {}
    for entry in entries:
        kind, _, what = entry.partition(":")
        if kind not in KINDS or (what and what.partition(":")[0] not in KINDS[kind]):
            raise ValueError(f"there is no fault {entry}; there are: {', '.join(KINDS)}")
        found[kind] = (*found.get(kind, ()), *((what,) if what else KINDS[kind]))
    return found


def faults(seed: int, entries: Sequence[str], window_s: float, mean_gap_s: float, lease_s: float) -> list[Fault]:
    """Give the faults of a run, in order; `entries` as in `chosen`."""
    dice = random.Random(f"faults/{seed}")
    wanted = chosen(entries)
    kinds = [kind for kind in WEIGHTS if kind in wanted]
    found: list[Fault] = []
    at_s = FIRST_S
    while kinds:
        at_s += dice.expovariate(1 / mean_gap_s)
        if at_s >= window_s:
            break
        kind = dice.choices(kinds, [WEIGHTS[kind] for kind in kinds])[0]
        what, _, place = dice.choice(wanted[kind]).partition(":")
        found.append(_fault(dice, kind, what, round(at_s, 2), lease_s))
        if place:
            found[-1].facts["place"] = place
    return sorted([*found, *_disks(seed, wanted.get("disk", ()), window_s, mean_gap_s)], key=lambda fault: fault.at_s)


def _disks(seed: int, whose: Sequence[str], window_s: float, mean_gap_s: float) -> list[Fault]:
    """Full disks, by dice of their own: with them or without, a seed's other faults are the same."""
    dice = random.Random(f"disks/{seed}")
    found: list[Fault] = []
    at_s = FIRST_S
    while whose:
        at_s += dice.expovariate(1 / (DISKS_EVERY * mean_gap_s))
        if at_s >= window_s:
            break
        lasts_s = round(dice.uniform(1.0, 8.0), 2)
        found.append(Fault(round(at_s, 2), "disk", dice.choice(whose), lasts_s, round(dice.random(), 4)))
    return found


def _fault(dice: random.Random, kind: str, what: str, at_s: float, lease_s: float) -> Fault:
    lasts_s, facts = 0.0, {}
    if kind == "pause":  # two of three outlive the lease
        lasts_s = dice.uniform(0.3, 1.0) * 2.2 * lease_s
        if what in ("redis", "store"):
            lasts_s = dice.uniform(0.5, 7.0)
    elif kind == "connection":
        facts = {"to": dice.choice(("redis", "store")), "line": dice.choice(LINES)}
        lasts_s = dice.uniform(0.5, 2 * lease_s)
        if what == "latency":
            facts |= {"ms": dice.choice((20, 200, 1500))}
        elif what == "throttle":
            facts |= {"kb_per_s": dice.choice((4, 64))}
        elif what == "tear":
            facts |= {"after_bytes": dice.choice((1, 300, 5000, 60_000))}
    elif kind == "redis":
        if what == "fill":
            lasts_s, facts = dice.uniform(1.0, 6.0), {"share": dice.choice((0.9, 1.0))}
        elif what == "restore":
            facts = {"age_s": round(dice.uniform(2.0, 20.0), 1)}
        elif what == "kill":
            lasts_s = dice.choice((0.0, 0.5, 4.0))
    elif kind == "outage":
        lasts_s = dice.choice((0.0, 3.0))
    elif kind == "store":
        lasts_s = dice.choice((0.0, 0.5, 3.0))
    elif kind == "events":
        lasts_s, facts = dice.uniform(2.0, 10.0), {"share": dice.choice((0.3, 1.0))}
    elif kind == "failpoints":
        facts = {"place": dice.choice(PLACES)}
        lasts_s = dice.uniform(3.0, 10.0)
        facts |= {"kill": {"count": dice.randint(1, 2)}, "delay": {"s": dice.choice((0.5, 1.5 * lease_s))}}.get(
            what, {"server": dice.choice(("store", "ledger")), "count": dice.randint(1, 3)}
        )
    return Fault(at_s, kind, what, round(lasts_s, 2), round(dice.random(), 4), facts)


def drops(seed: int, jobs: int, window_s: float) -> list[Drop]:
    """Give what is dropped, in order: most of it in clumps, as people do."""
    dice = random.Random(f"drops/{seed}")
    found: list[Drop] = []
    at_s = 0.5
    mean_clump = 4
    gap_s = max(0.05, (window_s - 2.0) / max(1, jobs / mean_clump))
    while len(found) < jobs:
        for _ in range(min(dice.randint(1, 2 * mean_clump - 1), jobs - len(found))):
            way = dice.choices(("put", "presigned", "call", "named"), (45, 15, 30, 10))[0]
            want = dice.choices(("small", "large", "many", "fail"), (60, 20, 12, 8))[0]
            twists = ("", "again", "cancel", "retry") if way in ("call", "named") else ("", "overwrite", "delete")
            twist = dice.choices(twists, (70, 12, 8, 10)[: len(twists)])[0]
            found.append(Drop(len(found), round(at_s, 2), way, want, round(dice.uniform(0.05, 2.0), 2), twist))
        at_s = min(at_s + dice.expovariate(1 / gap_s), window_s)
    return found
