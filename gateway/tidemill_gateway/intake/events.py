"""The care for bucket events: the notification rules of the triggers' buckets are kept, a canary shows that they work.

On MinIO each bucket has rules that say where its events go. They are set here, after each deploy and again every two
minutes, so that a rule which somebody removed comes back; the rules of others stay. Only with `intake.notify_arn`:
other stores send events by their own configuration.

Each gateway does this, in a thread of its own. Two that merge at once write the same rules.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from tidemill.errors import NotFound, TidemillError
from tidemill.store import Store
from tidemill_gateway.catalogue import Catalogue, Table
from tidemill_gateway.intake.canary import PREFIX, Canary, Health

_TICK_S = 1.0
_KEEP_S = 120.0
_OFF = Health(None, "no events are expected: listings find objects")
log = structlog.get_logger(__name__)


class Notifications:
    """The rules of the buckets that triggers watch, and of the platform bucket for its canary."""

    def __init__(self, store: Store, platform_bucket: str, arn: str) -> None:
        self._store = store
        self._platform_bucket = platform_bucket
        self._arn = arn
        self._kept: set[str] = set()
        self.problem: str | None = None

    def keep(self, table: Table) -> list[str]:
        """Make every bucket's rules so. Gives the buckets that lacked some; `problem` says what could not be done."""
        wanted: dict[str, list[str]] = {bucket: [] for bucket in self._kept} | {self._platform_bucket: [PREFIX]}
        for bucket, prefix in table.prefixes():
            wanted.setdefault(bucket, []).append(prefix)
        changed: list[str] = []
        problem: str | None = None
        for bucket, prefixes in wanted.items():
            try:
                if self._store.watch(bucket, self._arn, prefixes):
                    changed.append(bucket)
            except NotFound:
                continue  # a bucket that went has no events
            except TidemillError as error:
                problem = problem or f"the notification rules of {bucket} could not be set: {error.message}"
        self._kept = {bucket for bucket, prefixes in wanted.items() if prefixes}
        if problem is not None and problem != self.problem:
            log.warning("events.no_rules", problem=problem)
        self.problem = problem
        if changed:
            log.info("events.rules_set", buckets=changed)
        return changed


class Events:
    """Runs both in a thread between `start` and `stop`."""

    def __init__(
        self,
        catalogue: Catalogue,
        notifications: Notifications | None,
        canary: Canary | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._catalogue = catalogue
        self._notifications = notifications
        self._canary = canary
        self._clock = clock
        self._table: Table | None = None
        self._keep_at = 0.0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def health(self) -> Health:
        found = self._canary.health if self._canary is not None else _OFF
        if self._notifications is not None and self._notifications.problem is not None:
            return Health(False, self._notifications.problem, found.last_s)
        return found

    def start(self) -> None:
        if self._notifications is None and self._canary is None:
            return
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._thread.start()

    def stop(self, wait_s: float = 1.0) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(wait_s)
            self._thread = None

    def turn(self) -> None:
        """Do what is due. Raises the errors of store and ledger."""
        if self._notifications is not None:
            table = self._catalogue.current()
            if table is not self._table or self._clock() >= self._keep_at:
                self._notifications.keep(table)
                self._table, self._keep_at = table, self._clock() + _KEEP_S
        if self._canary is not None:
            self._canary.turn()

    def _run(self) -> None:
        while not self._stop.wait(_TICK_S):
            try:
                self.turn()
            except TidemillError as error:
                log.debug("events.interrupted", code=error.error_code, error=str(error))
            except Exception:
                log.exception("events.failed")
