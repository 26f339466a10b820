"""The ledger server's time, from what it stamps on transitions.

All times in the ledger are its server's; the planner compares them with now. Lines that were just written tell how far
this machine's clock is off. Nearby clocks are taken as equal, because reading a line takes a moment too.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

_LINES = 50
_NEAR_S = 0.5


class ServerTime:
    """Gives seconds since 1970 as the ledger's server counts them."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._offsets: deque[float] = deque(maxlen=_LINES)

    def saw(self, at: float) -> None:
        """A line with this time was written just now."""
        self._offsets.append(at - self._clock())

    def now(self) -> float:
        # A line can only be read late: the largest difference is the truest.
        offset = max(self._offsets, default=0.0)
        return self._clock() + (offset if abs(offset) > _NEAR_S else 0.0)
