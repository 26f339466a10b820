"""A small memory of what was said or found already, so that each listing does not say or ask it again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Memo(Generic[K, V]):
    """A map that forgets everything after `ttl_s` seconds, or when it would hold more than `limit` entries.

    Forgetting costs a repeated question and nothing else; and after the ledger lost its notes they are written again.
    """

    def __init__(self, limit: int, ttl_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._ttl_s = ttl_s
        self._clock = clock
        self._lock = threading.Lock()
        self._since = clock()
        self._entries: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        with self._lock:
            self._age()
            return self._entries.get(key)

    def put(self, key: K, value: V) -> bool:
        """Remember; gives whether the key was new."""
        with self._lock:
            self._age()
            new = key not in self._entries
            if new and len(self._entries) >= self._limit:
                self._entries.clear()
            self._entries[key] = value
            return new

    def _age(self) -> None:
        now = self._clock()
        if now - self._since >= self._ttl_s:
            self._entries.clear()
            self._since = now
