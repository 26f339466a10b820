"""Backpressure: above 80 % of its memory the ledger takes no new jobs, so that what runs can always report."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tidemill.errors import ServiceUnavailable
from tidemill.ledger.api import Ledger, Memory

_FRESH_S = 1.0


class Pressure:
    """Asks the ledger for its memory, at most once a second."""

    def __init__(self, ledger: Ledger, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger = ledger
        self._clock = clock
        self._lock = threading.Lock()
        self._asked_at = -_FRESH_S
        self._memory = Memory(0, 0)

    def check(self) -> None:
        """Raises `ServiceUnavailable` (code `ledger_full`) while new jobs must wait."""
        now = self._clock()
        with self._lock:
            stale = now - self._asked_at >= _FRESH_S
            if stale:
                self._asked_at = now
        if stale:
            self._memory = self._ledger.memory()
        if self._memory.full:
            used, limit = self._memory.used, self._memory.limit
            raise ServiceUnavailable(
                f"the ledger uses {used / limit:.0%} of its memory ({used} of {limit} bytes): no new jobs above 80 %",
                hint="Try again when running jobs have ended, or give Redis more memory (maxmemory).",
                code="ledger_full",
            )
