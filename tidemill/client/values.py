"""What the service says of a job, as plain values.

The client does not use the pydantic models: they refuse what they do not know, and a client should go on working when a
newer service says more. Times are seconds since 1970 (UTC).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FINAL_STATES = frozenset({"succeeded", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a function says it is; `total` and `unit` may be unknown."""

    done: float = 0.0
    total: float | None = None
    unit: str | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """What a job cost: US dollars, and seconds of a whole GPU."""

    usd: float = 0.0
    gpu_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pool as placement judged it: seconds from then to the result, US dollars, score (lower wins)."""

    pool: str
    seconds_p50: float | None = None
    seconds_p90: float | None = None
    usd: float | None = None
    score: float | None = None
    excluded_because: str | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a job runs and why, in one sentence."""

    pool: str | None = None
    reason: str = ""
    candidates: tuple[Candidate, ...] = ()


@dataclass(frozen=True, slots=True)
class OutputInfo:
    """A result as an object in the store; `size` in bytes."""

    name: str
    bucket: str
    key: str
    size: int
    content_type: str | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A job as the service last described it; `data` is the whole JSON object (contract: "A job as JSON")."""

    data: Mapping[str, Any]

    @property
    def id(self) -> str:
        return str(self.data["id"])

    @property
    def state(self) -> str:
        return str(self.data.get("state", "queued"))

    @property
    def done(self) -> bool:
        return self.state in FINAL_STATES

    @property
    def function(self) -> str:
        return str(self.data.get("function", ""))

    @property
    def progress(self) -> Progress | None:
        found = self.data.get("progress")
        return Progress(**_known(found, "done", "total", "unit")) if found else None

    @property
    def cost(self) -> Cost:
        return Cost(**_known(self.data.get("cost") or {}, "usd", "gpu_seconds"))

    @property
    def placement(self) -> Placement | None:
        found = self.data.get("placement")
        if not found:
            return None
        names = ("pool", "seconds_p50", "seconds_p90", "usd", "score", "excluded_because")
        candidates = tuple(Candidate(**_known(c, *names)) for c in found.get("candidates") or ())
        return Placement(found.get("pool"), found.get("reason") or "", candidates)

    @property
    def outputs(self) -> tuple[OutputInfo, ...]:
        return tuple(output_info(entry) for entry in self.data.get("outputs") or ())


def output_info(entry: Mapping[str, Any]) -> OutputInfo:
    """One entry of a job's `outputs`."""
    key = str(entry["key"])
    name = entry.get("name") or key.rsplit("/", 1)[-1]
    return OutputInfo(name, str(entry["bucket"]), key, int(entry.get("size") or 0), entry.get("content_type"))


def _known(data: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: data[name] for name in names if name in data}
