"""Tidemill: an event-driven GPU job queue.

Importing this package is cheap: the names below are loaded at first use, and none of them brings a server library.
"""

from __future__ import annotations

# Type checkers take it for true; the module `typing` itself would cost more than everything else here.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from tidemill.client import AsyncClient, AsyncJob, Client, Job, Output
    from tidemill.errors import (
        Conflict,
        FunctionFailed,
        InvalidSpec,
        JobCancelled,
        LedgerUnavailable,
        NoCapacity,
        NotAllowed,
        NotFound,
        PreconditionFailed,
        QuotaExceeded,
        ServiceUnavailable,
        StoreUnavailable,
        TidemillError,
        WaitTimeout,
    )
    from tidemill.handler import Context, File, PermanentError, TemporaryError

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "AsyncJob",
    "Client",
    "Conflict",
    "Context",
    "File",
    "FunctionFailed",
    "InvalidSpec",
    "Job",
    "JobCancelled",
    "LedgerUnavailable",
    "NoCapacity",
    "NotAllowed",
    "NotFound",
    "Output",
    "PermanentError",
    "PreconditionFailed",
    "QuotaExceeded",
    "ServiceUnavailable",
    "StoreUnavailable",
    "TemporaryError",
    "TidemillError",
    "WaitTimeout",
    "__version__",
]

_ROOMS = dict.fromkeys(("AsyncClient", "AsyncJob", "Client", "Job", "Output"), "tidemill.client")
_ROOMS |= dict.fromkeys(("Context", "File", "PermanentError", "TemporaryError"), "tidemill.handler")


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_ROOMS.get(name, "tidemill.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
