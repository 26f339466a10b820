"""The in-memory twins of ledger and store: for our tests, and for those of users. Both pass the contract tests."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemill.testing.memory_ledger import MemoryLedger
    from tidemill.testing.memory_store import MemoryStore

__all__ = ["MemoryLedger", "MemoryStore"]

_WHERE = {"MemoryLedger": "memory_ledger", "MemoryStore": "memory_store"}


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
