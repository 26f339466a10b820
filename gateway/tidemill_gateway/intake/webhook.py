"""The receiver of bucket events: a bounded queue in memory and a few threads that drain it.

The HTTP handler only offers a body: no parsing, no store, no ledger, so it answers in well under a millisecond whatever
the body is, and a burst never backs up into the store. What does not fit is dropped; so is a batch that meets a
dead store or ledger. Both are found by the next listing.

Memory stays flat whatever is sent: all bytes that are held count, from the first part of a body until its batch is
done; and as JSON takes up to thirty times its size when it is read, large bodies are read one at a time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, replace

import structlog

from tidemill.errors import InvalidSpec, LedgerUnavailable, NotAllowed, NotFound, TidemillError
from tidemill.ledger.api import Ledger
from tidemill.models import BucketEvent
from tidemill_gateway.catalogue import Catalogue
from tidemill_gateway.intake.canary import Canary
from tidemill_gateway.intake.dialects import Reading, read
from tidemill_gateway.intake.submit import Submitter, Taken
from tidemill_gateway.metrics import Metrics
from tidemill_gateway.pressure import Pressure

MAX_BODY_BYTES = 6 * 2**20
_MAX_HELD_BYTES = 16 * 2**20
_LARGE_BYTES = 2**16
_BATCH = 32
_BATCH_BYTES = 2**18
_JUNK_BYTES = 4096
_COMPLAIN_S = 10.0
_MOST_TABLES = 10  # so many deploys during one event; then the listing takes it
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Arrival:
    """One body as it came; `at` is monotonic seconds. `fault` is set when it is known to be junk unread."""

    source: str
    body: bytes
    at: float
    fault: str | None = None


class Receiver:
    """Takes bodies, gives jobs. `start` and `stop` belong to the process that owns it."""

    def __init__(
        self,
        ledger: Ledger,
        catalogue: Catalogue,
        submitter: Submitter,
        pressure: Pressure,
        metrics: Metrics,
        *,
        queue: int,
        canary: Canary | None = None,
        workers: int = 3,
    ) -> None:
        self._ledger = ledger
        self._catalogue = catalogue
        self._submitter = submitter
        self._pressure = pressure
        self._metrics = metrics
        self._limit = queue
        self._canary = canary
        self._workers = workers
        self._changed = threading.Condition()
        self._waiting: deque[Arrival] = deque()
        self._bytes = 0
        self._reading_large = threading.Lock()
        self._stopping = False
        self._threads: list[threading.Thread] = []
        self._complained_at = -_COMPLAIN_S

    def hold(self, count: int) -> bool:
        """Count bytes of a body that is still coming. False when there is no room for them. Never blocks."""
        with self._changed:
            if self._bytes + count > _MAX_HELD_BYTES:
                return False
            self._bytes += count
        return True

    def let_go(self, count: int) -> None:
        """Give back what `hold` counted for a body that is not offered."""
        with self._changed:
            self._bytes -= count

    def offer(self, source: str, body: bytes, fault: str | None = None, *, held: int = 0) -> bool:
        """Queue a body, of which `held` bytes are counted. False when there is no room for it. Never blocks."""
        arrival = Arrival(source, body, time.monotonic(), fault)
        self._metrics.events_received.inc()
        with self._changed:
            self._bytes -= held
            if len(self._waiting) >= self._limit or self._bytes + len(body) > _MAX_HELD_BYTES:
                self._metrics.events_dropped.inc()
                return False
            self._waiting.append(arrival)
            self._bytes += len(body)
            self._changed.notify()
        return True

    def turn_away(self) -> None:
        """Count a body for which there was no room."""
        self._metrics.events_received.inc()
        self._metrics.events_dropped.inc()

    @property
    def backlog(self) -> int:
        """Bodies that wait."""
        return len(self._waiting)

    def start(self) -> None:
        self._stopping = False
        for number in range(self._workers):
            thread = threading.Thread(target=self._work, name=f"intake-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self, wait_s: float = 1.0) -> None:
        """End the threads; bodies that still wait are left to the next listing."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        deadline = time.monotonic() + wait_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._threads.clear()

    def _work(self) -> None:
        while (batch := self._next()) is not None:
            try:
                self._drain(batch)
            except TidemillError as error:
                self._complain(error, len(batch))
            except Exception:
                log.exception("intake.failed", bodies=len(batch))
            finally:
                self.let_go(sum(len(arrival.body) for arrival in batch))

    def _next(self) -> list[Arrival] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._stopping)
            if self._stopping:
                return None
            # A fair part for each thread, so that a short burst is shared.
            take = min(_BATCH, -(-len(self._waiting) // self._workers))
            batch = [self._waiting.popleft()]
            size = len(batch[0].body)
            while len(batch) < take and size + len(self._waiting[0].body) <= _BATCH_BYTES:
                batch.append(self._waiting.popleft())
                size += len(batch[-1].body)
            return batch

    def _drain(self, batch: list[Arrival]) -> None:
        hints: dict[tuple[str, tuple[str, ...]], tuple[BucketEvent, float]] = {}
        for arrival in batch:
            reading = self._read(arrival.body) if arrival.fault is None else None
            junk = arrival.fault if reading is None else reading.junk
            if junk is not None:
                self._metrics.events_junk.inc()
                self._ledger.note_junk(arrival.source, junk, arrival.body[:_JUNK_BYTES])
            for event in reading.events if reading is not None else ():
                if not self._is_canary(event, arrival.at):
                    hints.setdefault((event.bucket, event.keys), (event, arrival.at))
        if not hints:
            return
        meant = self._meant(list(hints.values()))
        if not meant:
            return
        self._pressure.check()
        for event, at in meant:
            try:
                taken = self._take(event)
            except (InvalidSpec, NotAllowed, NotFound) as error:
                # A forged event, or one of a bucket that went: the others of the batch are as good as ever.
                log.info("intake.no_object", bucket=event.bucket, key=event.keys[0], error=error.message)
                continue
            if taken.created:
                self._metrics.jobs_accepted.labels("event").inc(taken.created)
                self._metrics.intake_seconds.observe(time.monotonic() - at)

    def _read(self, body: bytes) -> Reading:
        if len(body) < _LARGE_BYTES:
            return read(body)
        with self._reading_large:
            return read(body)

    def _meant(self, hints: list[tuple[BucketEvent, float]]) -> list[tuple[BucketEvent, float]]:
        """Those of buckets that a trigger watches; the ledger is asked for new triggers only about the others."""
        table = self._catalogue.known()
        if not all(hint[0].bucket in table.triggers for hint in hints):
            table = self._catalogue.current()
        return [hint for hint in hints if hint[0].bucket in table.triggers]

    def _take(self, event: BucketEvent) -> Taken:
        """Take an event by the functions as they were read last, which is true when a job comes of it: the ledger
        accepts none at another version. In all other cases the version is asked for, and a new one used."""
        table, created = self._catalogue.known(), 0
        for _ in range(_MOST_TABLES):
            taken = self._submitter.event(table, event)
            created += taken.created
            if (taken.created and not taken.moved) or (newer := self._catalogue.current()) is table:
                return replace(taken, created=created)
            table = newer
        raise LedgerUnavailable("functions change faster than an event is taken")

    def _is_canary(self, event: BucketEvent, at: float) -> bool:
        if self._canary is None:
            return False
        try:
            return self._canary.seen(event.bucket, event.keys[0], at)
        except TidemillError as error:
            log.debug("events.canary_kept", code=error.error_code, error=str(error))
            return True

    def _complain(self, error: TidemillError, bodies: int) -> None:
        """One line in ten seconds: while a server is away each batch fails alike."""
        self._metrics.events_dropped.inc(bodies)
        now = time.monotonic()
        if now - self._complained_at >= _COMPLAIN_S:
            self._complained_at = now
            log.warning("intake.left_to_listing", bodies=bodies, code=error.error_code, error=str(error))
