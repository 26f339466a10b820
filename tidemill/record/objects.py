"""Records as objects: JSON in the platform bucket, created once or replaced by ETag.

A conditional put that is refused, or whose answer got lost, says nothing about who wrote: the object is read back, and
its content decides.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import pydantic
import structlog

from tidemill.errors import NotFound, PreconditionFailed, StoreUnavailable, TidemillError
from tidemill.models.base import Model
from tidemill.record.damage import CODE
from tidemill.store.api import Store

M = TypeVar("M", bound=Model)
_JSON = "application/json"
# Three or more writers of one key wait for each other in SeaweedFS; who lost steps back before reading again.
_PAUSES_S = (0.05, 0.2, 0.8)
_DAMAGED_KEPT = 1000
log = structlog.get_logger(__name__)


class Objects:
    """The platform bucket as a place of records."""

    def __init__(self, store: Store, bucket: str, sleep: Callable[[float], None] = time.sleep) -> None:
        self._store = store
        self._bucket = bucket
        self._sleep = sleep
        self._damaged: dict[str, str] = {}
        self._lock = threading.Lock()

    def read(self, key: str, model: type[M]) -> M | None:
        """The record, or None when there is none. Raises `TidemillError` for one that cannot be understood."""
        try:
            body = self._store.get(self._bucket, key)
            record = parse(key, body, model)
        except NotFound:
            self._sound(key)
            return None
        except TidemillError as error:
            if error.error_code == CODE:
                self._note(key, error)
            raise
        self._sound(key)
        return record

    def damaged(self) -> dict[str, str]:
        """The records that could not be read when they were read last: key -> what is wrong. At most 1,000."""
        with self._lock:
            return dict(self._damaged)

    def _note(self, key: str, error: TidemillError) -> None:
        with self._lock:
            new = key not in self._damaged
            if new and len(self._damaged) < _DAMAGED_KEPT:
                self._damaged[key] = error.message
        if new:
            log.error("record.damaged", key=key, error=error.message, hint=error.hint)

    def _sound(self, key: str) -> None:
        if self._damaged:
            with self._lock:
                self._damaged.pop(key, None)

    def create(self, key: str, record: M) -> M:
        """Writes the record if there is none, and gives the one that is there now: ours or the first writer's."""
        body = record.model_dump_json().encode()
        for pause_s in (*_PAUSES_S, 0.0):
            try:
                self._store.put(self._bucket, key, body, content_type=_JSON, if_none_match=True)
            except PreconditionFailed:
                found = self.read(key, type(record))
            except StoreUnavailable:
                found = self.read(key, type(record))
                if found is None:
                    raise
            else:
                return record
            if found is not None:
                return found
            self._sleep(pause_s * random.uniform(0.5, 1.5))  # noqa: S311 - spreads writers, guards nothing
        raise StoreUnavailable(f"the store refuses {key} as taken, but shows nothing there")

    def replace(self, key: str, record: Model) -> None:
        """Writes the record over whatever is there."""
        self._store.put(self._bucket, key, record.model_dump_json().encode(), content_type=_JSON)

    def exchange(self, key: str, record: M, if_match: str | None) -> str:
        """Writes the record over the one with this ETag (None: only if there is none); gives the new ETag.

        Raises `PreconditionFailed` when another one is there. Our own, written by a try whose answer was lost, is not
        another one.
        """
        body = record.model_dump_json().encode()
        try:
            return self._store.put(
                self._bucket, key, body, content_type=_JSON, if_none_match=if_match is None, if_match=if_match
            )
        except (NotFound, PreconditionFailed) as error:
            # A missing object under If-Match is a 404 on some stores, a 412 on others.
            return self._mine(key, record, PreconditionFailed(f"{key} is another record now: {error}"))
        except StoreUnavailable as error:
            return self._mine(key, record, error)

    def _mine(self, key: str, record: Model, refusal: TidemillError) -> str:
        found = self.read_tagged(key, type(record))
        if found is None or found[0] != record:
            raise refusal
        return found[1]

    def read_tagged(self, key: str, model: type[M]) -> tuple[M, str] | None:
        """The record and its ETag, both of one moment."""
        for _ in range(10):
            before = self._store.head(self._bucket, key)
            if before is None:
                return None
            found = self.read(key, model)
            after = self._store.head(self._bucket, key)
            if found is not None and after is not None and before.etag == after.etag:
                return found, before.etag
        raise StoreUnavailable(f"{key} changes all the time")


def parse(key: str, body: bytes, model: type[M]) -> M:
    """The record in these bytes."""
    try:
        return model.model_validate_json(body)
    except pydantic.ValidationError as error:
        raise TidemillError(
            f"{key} in the platform bucket is damaged, or of another version: {error.error_count()} faults, the first: "
            f"{error.errors()[0]['msg']}",
            code=CODE,
            hint="Read it with any S3 client; deleting it makes Tidemill forget what it says.",
        ) from error
