"""A canary: a tiny object in the platform bucket, written now and then. Its event shows that events come, and how fast.

Whatever gateway the event reaches: its own canary it takes off the list of those it waits for, another gateway's it
deletes, and a canary that is gone has been seen. So the store itself carries the news between gateways.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from tidemill.store import Store

PREFIX = "canary/"
LATE_S = 10.0
_LEFTOVER_S = 86400.0
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Health:
    """Whether bucket events come (None: not known, or not expected), in words, and the seconds of the last one."""

    ok: bool | None
    detail: str
    last_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Bird:
    key: str
    sent_at: float


class Canary:
    """Sends, and hears of, this gateway's canaries. `turn` belongs to one thread, the rest to any."""

    def __init__(
        self,
        store: Store,
        bucket: str,
        holder: str,
        every_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._bucket = bucket
        self._holder = holder
        self._every_s = every_s
        self._clock = clock
        self._wall = wall
        self._lock = threading.Lock()
        self._bird: _Bird | None = None
        self._due_at = -1.0
        self._health = Health(None, "not measured yet")
        self.lost = 0

    @property
    def health(self) -> Health:
        return self._health

    def seen(self, bucket: str, key: str, at: float) -> bool:
        """An event has come, at this monotonic second. Gives whether it was a canary's, and so no job's.

        Raises:
            StoreUnavailable: another gateway's canary could not be deleted; that gateway will not hear of it.
        """
        if bucket != self._bucket or not key.startswith(PREFIX):
            return False
        with self._lock:
            bird = self._bird
            ours = bird is not None and bird.key == key
            if bird is not None and ours:
                self._bird = None
                self._came(max(0.0, at - bird.sent_at))
        if not ours and not key.startswith(f"{PREFIX}{self._holder}/"):
            self._store.delete(self._bucket, key)
        return True

    def turn(self) -> None:
        """Look after the canary that is out, or send the next one when it is time.

        Raises:
            StoreUnavailable: and other errors of the store; nothing is known then.
        """
        now = self._clock()
        bird = self._bird
        if bird is not None:
            self._look(bird, now)
        elif now >= self._due_at:
            self._send(now)

    def _send(self, now: float) -> None:
        for page in self._store.pages(self._bucket, PREFIX):
            for info in page:
                # Those of this gateway that were seen, and what gateways left behind that are gone.
                if info.key.startswith(f"{PREFIX}{self._holder}/") or self._wall() - info.last_modified > _LEFTOVER_S:
                    self._store.delete(self._bucket, info.key)
        self._due_at = now + self._every_s
        bird = _Bird(f"{PREFIX}{self._holder}/{secrets.token_hex(8)}", self._clock())
        with self._lock:
            self._bird = bird  # before it flies: some stores send the event before they answer
        try:
            self._store.put(self._bucket, bird.key, b"tidemill\n")
        except BaseException:
            with self._lock:
                self._bird = None
            raise

    def _look(self, bird: _Bird, now: float) -> None:
        gone = self._store.head(self._bucket, bird.key) is None
        with self._lock:
            if self._bird is not bird:
                return  # it came while we looked
            if gone:
                self._bird = None
                self._came(now - bird.sent_at)
            elif now - bird.sent_at >= LATE_S:
                self._bird = None
                self.lost += 1
                if self._health.ok is not False:
                    log.warning("events.missing", waited_s=round(now - bird.sent_at, 1))
                self._health = Health(
                    False,
                    f"an object in the platform bucket made no event within {LATE_S:g} s: listings alone find objects",
                    self._health.last_s,
                )
                # Sooner than usual: what was mended shows.
                self._due_at = min(self._due_at, now + self._every_s / 6)

    def _came(self, seconds: float) -> None:
        if self._health.ok is not True:
            log.info("events.come", seconds=round(seconds, 3))
        self._health = Health(True, f"the last test event took {seconds:.3f} s", seconds)
