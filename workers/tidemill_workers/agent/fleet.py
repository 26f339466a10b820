"""The runners of an agent: at most `slots` of them, kept warm between jobs, started on demand or because wanted.

A job borrows a runner of its function's revision for the time of its run (`lend`). Which one it gets, in this order: an
idle one of the same revision; a new one while slots are free; the slot of the runner that has been idle longest. When
all are busy the caller waits: its input is on the disk by then, so the next run begins the moment a slot is free.

`adjust` makes the idle runners what placement wants, level-triggered: it may be called with the same map again and
again, and never touches a runner that is lent. A revision whose runners do not start is tried again after 1, 2, 4, ...
seconds; a job that is there tries at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tidemill.ledger.api import RunnerReport
from tidemill.models import FunctionRecord


class Startable(Protocol):
    """What the fleet needs of a runner."""

    @property
    def alive(self) -> bool: ...
    def start(self) -> None: ...
    def stop(self, grace_s: float = ...) -> None: ...


R = TypeVar("R", bound=Startable)
_LONGEST_PAUSE_S = 60.0


@dataclass
class _Place(Generic[R]):
    """One used slot. `lent` also covers the time in which its runner starts."""

    function: str
    revision: str
    lent: bool
    runner: R | None = None
    idle_since: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.function}@{self.revision}"


class Fleet(Generic[R]):
    """All runners of one agent. Safe from any thread.

    Args:
        slots: most runners at once.
        make: gives a started runner of a deployed function; may raise, and then the slot is free again.
        clock: seconds that only grow.
    """

    def __init__(
        self, slots: int, make: Callable[[FunctionRecord], R], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._slots = slots
        self._make = make
        self._clock = clock
        self._places: list[_Place[R]] = []
        self._changed = threading.Condition()
        self._closed = False
        self._failed: dict[str, tuple[int, float]] = {}  # failed starts of a revision in a row, and no start before

    @contextmanager
    def lend(self, function: FunctionRecord, give_up: Callable[[], bool] = lambda: False) -> Iterator[R]:
        """Borrow a runner of this revision, waiting for a free slot.

        Args:
            function: the deployed function.
            give_up: asked about once a second while waiting; true ends the wait.

        Raises:
            FleetClosed: when the agent stops, or `give_up` said so.
            whatever `make` raises when the runner cannot start.
        """
        place = self._take(function, give_up)
        try:
            if place.runner is None:
                place.runner = self._start(place, function)
            yield place.runner
        finally:
            self._return(place)

    def adjust(self, wanted: Mapping[str, int], find: Callable[[str], FunctionRecord | None]) -> None:
        """Stop idle runners that are not wanted, start wanted ones where slots are free.

        Args:
            wanted: slots for each `function@revision`.
            find: gives the deployed function of a name, or None.
        """
        surplus, missing = self._compare(wanted)
        for place in surplus:
            if place.runner is not None:
                place.runner.stop()
            self._drop(place)
        for name in missing:
            record = find(name.partition("@")[0])
            if record is None or f"{record.name}@{record.revision}" != name:
                continue
            place = _Place(record.name, record.revision, lent=True)
            with self._changed:
                if self._closed or len(self._places) >= self._slots:
                    return
                self._places.append(place)
            threading.Thread(target=self._start_idle, args=(place, record), name="warm", daemon=True).start()

    def reports(self) -> tuple[RunnerReport, ...]:
        """What the heartbeat says of the runners."""
        now = self._clock()
        with self._changed:
            groups: dict[str, list[_Place[R]]] = {}
            for place in self._places:
                groups.setdefault(place.name, []).append(place)
            return tuple(
                RunnerReport(
                    function=places[0].function,
                    revision=places[0].revision,
                    slots=len(places),
                    busy=sum(place.lent for place in places),
                    idle_s=0.0
                    if any(place.lent for place in places)
                    else min(now - place.idle_since for place in places),
                    state="ready" if any(place.runner for place in places) else "starting",
                )
                for places in groups.values()
            )

    @property
    def busy(self) -> int:
        """Number of runners that are lent or start."""
        with self._changed:
            return sum(place.lent for place in self._places)

    def close(self) -> None:
        """Stop all runners, also lent ones, and let nobody borrow any more."""
        with self._changed:
            self._closed = True
            places = list(self._places)
            self._changed.notify_all()
        for place in places:
            if place.runner is not None:
                place.runner.stop()

    def _take(self, function: FunctionRecord, give_up: Callable[[], bool]) -> _Place[R]:
        doomed: _Place[R] | None = None
        with self._changed:
            while True:
                if self._closed or give_up():
                    raise FleetClosed
                idle = [place for place in self._places if not place.lent]
                same = [
                    place for place in idle if (place.function, place.revision) == (function.name, function.revision)
                ]
                alive = [place for place in same if place.runner is not None and place.runner.alive]
                if alive:
                    place = max(alive, key=lambda found: found.idle_since)
                    place.lent = True
                    return place
                if len(self._places) < self._slots or idle:
                    if len(self._places) >= self._slots:
                        doomed = same[0] if same else min(idle, key=lambda found: found.idle_since)
                        self._places.remove(doomed)
                    place = _Place(function.name, function.revision, lent=True)
                    self._places.append(place)
                    break
                self._changed.wait(timeout=1.0)
        if doomed is not None and doomed.runner is not None:
            doomed.runner.stop()
        return place

    def _return(self, place: _Place[R]) -> None:
        with self._changed:
            place.lent = False
            place.idle_since = self._clock()
            if (place.runner is None or not place.runner.alive) and place in self._places:
                self._places.remove(place)
            self._changed.notify_all()

    def _drop(self, place: _Place[R]) -> None:
        with self._changed:
            if place in self._places:
                self._places.remove(place)
            self._changed.notify_all()

    def _compare(self, wanted: Mapping[str, int]) -> tuple[list[_Place[R]], list[str]]:
        """Idle places that are too many (marked lent, so that nobody takes them), and names of missing ones."""
        with self._changed:
            have: dict[str, int] = {}
            for place in self._places:
                have[place.name] = have.get(place.name, 0) + 1
            surplus = []
            for place in sorted((p for p in self._places if not p.lent), key=lambda found: found.idle_since):
                dead = place.runner is None or not place.runner.alive
                if dead or have[place.name] > wanted.get(place.name, 0):
                    have[place.name] -= 1
                    place.lent = True
                    surplus.append(place)
            now = self._clock()
            missing = [
                name
                for name, slots in wanted.items()
                for _ in range(slots - have.get(name, 0))
                if self._failed.get(name, (0, now))[1] <= now
            ]
            return surplus, missing

    def _start(self, place: _Place[R], record: FunctionRecord) -> R:
        try:
            runner = self._make(record)
        except Exception:
            with self._changed:
                times = self._failed.get(place.name, (0, 0.0))[0] + 1
                pause_s = min(_LONGEST_PAUSE_S, 2.0 ** min(times - 1, 10))
                self._failed[place.name] = times, self._clock() + pause_s
            raise
        with self._changed:
            self._failed.pop(place.name, None)
        return runner

    def _start_idle(self, place: _Place[R], record: FunctionRecord) -> None:
        try:
            place.runner = self._start(place, record)
        except Exception:  # noqa: BLE001 - `make` has reported it to the ledger; the next job meets it again
            place.runner = None
        self._return(place)


class FleetClosed(Exception):
    """The agent stops, or the borrower gave up waiting."""
