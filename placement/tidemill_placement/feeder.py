"""Feeds Flower: the ledger's transitions become Celery events, in groups.

A Flower that (re)starts knows nothing, and one whose connection broke may have missed something: both show up as a new
listener, and the whole stream that is kept is sent again.
Who listens stands in a set of Redis that is lost with it, while a Flower that listened still does. So lines are sent
whether the set has a member or not, and all of them again in a new epoch: a Flower that started just before the loss
would be in no set, and without the rows of before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

import structlog

from tidemill.ledger.api import Ledger, Transition

_GROUP = 200
_REMEMBERED = 20_000
log = structlog.get_logger(__name__)


class Events(Protocol):
    """What is needed of `tidemill.doorbell.FlowerEvents`."""

    def listeners(self) -> frozenset[str]: ...
    def send(self, transitions: Iterable[Transition]) -> int: ...


class Feeder:
    """Sends rows to Flower. Every call may raise `OSError` when the broker does not answer; call again."""

    def __init__(self, ledger: Ledger, events: Events) -> None:
        self._ledger = ledger
        self._events = events
        self._listeners: frozenset[str] = frozenset()
        self._epoch = 0
        self._position = "0"
        self._summaries: OrderedDict[str, str] = OrderedDict()

    def look(self) -> None:
        """See who listens, in which epoch: a new Flower, and each after a loss of Redis, gets all from the start."""
        listeners = self._events.listeners()
        epoch = (self._ledger.epoch() or (0, 0))[0]
        if listeners - self._listeners or epoch != self._epoch:
            log.info("flower.listens", listeners=len(listeners), epoch=epoch)
            self._position = "0"
        self._listeners, self._epoch = listeners, epoch

    def feed(self) -> int:
        """Send what has come since the last call. Gives the number of lines."""
        sent = 0
        while lines := self._ledger.transitions(self._position, 0.0, _GROUP):
            self._events.send(self._with_summaries(lines))
            self._position = lines[-1].position
            sent += len(lines)
        return sent

    def _with_summaries(self, lines: Sequence[Transition]) -> list[Transition]:
        """Only the first line of a job says what its input is; Flower takes it from the last one that it saw."""
        told = []
        for line in lines:
            if line.summary:
                self._summaries[line.job_id] = line.summary
                if len(self._summaries) > _REMEMBERED:
                    self._summaries.popitem(last=False)
            else:
                line = replace(line, summary=self._summaries.get(line.job_id, ""))
            told.append(line)
            if line.state.terminal:
                self._summaries.pop(line.job_id, None)
        return told
