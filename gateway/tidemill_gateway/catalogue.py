"""The functions and their triggers as the ledger has them, kept in memory until the ledger's version moves."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemill.ledger.api import Ledger
from tidemill.models import FunctionRecord, Trigger


@dataclass(frozen=True)
class Table:
    """All functions at one version, with the triggers of each bucket and the default parameters of each function.

    `version` is None where nobody has read any yet.
    """

    functions: Mapping[str, FunctionRecord] = field(default_factory=dict)
    triggers: Mapping[str, list[tuple[FunctionRecord, Trigger]]] = field(default_factory=dict)
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    version: int | None = None

    def targets(self, bucket: str, key: str) -> list[tuple[FunctionRecord, Trigger]]:
        """Give each function that an object of this name belongs to, with the first trigger that matches."""
        found: dict[str, tuple[FunctionRecord, Trigger]] = {}
        for record, trigger in self.triggers.get(bucket, ()):
            if record.name not in found and trigger.matches(bucket, key):
                found[record.name] = (record, trigger)
        return list(found.values())

    def prefixes(self) -> list[tuple[str, str]]:
        """Give the (bucket, prefix) pairs that cover every trigger, none of them inside another."""
        pairs = sorted({(bucket, t.prefix) for bucket, found in self.triggers.items() for _, t in found})
        cover: list[tuple[str, str]] = []
        for bucket, prefix in pairs:  # sorted: a covering prefix comes before what it covers
            if not any(bucket == b and prefix.startswith(p) for b, p in cover):
                cover.append((bucket, prefix))
        return cover


def table_of(functions: Mapping[str, FunctionRecord], version: int | None = None) -> Table:
    live = {name: record for name, record in functions.items() if record.deleted_at is None}
    triggers: dict[str, list[tuple[FunctionRecord, Trigger]]] = {}
    for record in live.values():
        for trigger in record.spec.trigger:
            triggers.setdefault(trigger.bucket, []).append((record, trigger))
    defaults = {
        name: {key: rule["default"] for key, rule in record.spec.params.items() if "default" in rule}
        for name, record in live.items()
    }
    return Table(live, triggers, defaults, version)


class Catalogue:
    """Gives the current `Table`. Safe from any thread."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._table = Table()

    def known(self) -> Table:
        """The table as it was read last, without a round trip: for those who let the ledger check its version."""
        return self._table

    def current(self) -> Table:
        """One round trip when nothing changed.

        Raises:
            LedgerUnavailable: Redis does not answer.
        """
        version = self._ledger.version()
        with self._lock:
            if version != self._table.version:
                # The version is read first: a change in between only makes the next call read again.
                self._table = table_of(self._ledger.functions(), version)
            return self._table
