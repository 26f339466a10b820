"""A job as the world sees it, and the identity that makes a doubled event the same job."""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Any

from pydantic import Field

from tidemill.models.base import Model


class JobState(StrEnum):
    queued = "queued"
    released = "released"
    running = "running"
    committed = "committed"
    succeeded = "succeeded"
    failed = "failed"
    cancelled = "cancelled"

    @property
    def terminal(self) -> bool:
        return self in TERMINAL


TERMINAL = frozenset({JobState.succeeded, JobState.failed, JobState.cancelled})


class JobInput(Model):
    """The object that a job reads. `etag` is without quotes; `last_modified` in whole seconds since 1970 (UTC).

    `pinned`: the caller named this version, so it stays the input whatever else is written under the key. A version
    that the store told of by itself does not pin. Left out of JSON when false.
    """

    bucket: str
    key: str
    version_id: str | None = None
    pinned: bool = Field(default=False, exclude_if=lambda pinned: not pinned)
    etag: str
    size: int
    last_modified: int = 0
    content_type: str | None = None
    name: str | None = None  # the file name of an API payload, whose key is ours
    hop: int = 0


class Progress(Model):
    done: float = 0.0
    total: float | None = None
    unit: str | None = None


class Candidate(Model):
    """One pool as placement judged it. Seconds from now to the result; US dollars for this job; lower score wins."""

    pool: str
    seconds_p50: float | None = None
    seconds_p90: float | None = None
    usd: float | None = None
    score: float | None = None
    excluded_because: str | None = None


class Placement(Model):
    pool: str | None = None
    reason: str = ""
    candidates: tuple[Candidate, ...] = ()


class Cost(Model):
    usd: float = 0.0
    gpu_seconds: float = 0.0


class OutputObject(Model):
    bucket: str
    key: str
    size: int
    content_type: str | None = None
    sha256: str | None = None
    name: str | None = None


class JobError(Model):
    code: str
    message: str = ""
    traceback: str = ""
    log_tail: str = ""
    hint: str | None = None


class Event(Model):
    """One line of a job's history. `at` in seconds since 1970 (UTC)."""

    at: float
    what: str
    attempt: int = 0
    agent: str | None = None
    detail: str | None = None


class Job(Model):
    """A job as JSON (contract.md). Times are seconds since 1970 (UTC), or null."""

    id: str
    function: str
    revision: str
    generation: int = 1
    state: JobState
    input: JobInput
    params: dict[str, Any] = Field(default_factory=dict)
    owner: str = "default"
    attempt: int = 0
    pool: str | None = None
    agent: str | None = None
    batch: int | None = None
    created_at: float
    released_at: float | None = None
    started_at: float | None = None
    finished_at: float | None = None
    progress: Progress | None = None
    placement: Placement | None = None
    cost: Cost = Cost()
    outputs: tuple[OutputObject, ...] = ()
    error: JobError | None = None
    history: tuple[Event, ...] = ()
    cancel_requested: bool = False


def object_job_id(function: str, store: str, bucket: str, key: str, etag: str, size: int, last_modified_s: int) -> str:
    """Give the job id of an object: 32 hex digits, the same for each event and each listing of the same content.

    The parts are joined with their lengths, so no two different inputs give one text.
    """
    return _digest("object", function, store, bucket, key, etag, str(size), str(last_modified_s))


def request_job_id(function: str, owner: str, request: str) -> str:
    """Give the job id of an API call: of its idempotency key, or of the random request id made for it."""
    return _digest("request", function, owner, request)


def _digest(*parts: str) -> str:
    # One update of one text: listings compute millions of these.
    encoded = [part.encode("utf-8", "surrogatepass") for part in parts]
    return hashlib.sha256(b"".join([b"%d:%b" % (len(data), data) for data in encoded])).hexdigest()[:32]


def settled_place(job_id: str) -> tuple[int, int]:
    """Give the shard (0..1023) and the signed 64-bit digest under which the settled set keeps a job id."""
    number = int(job_id, 16)
    shard = number >> 118  # the top 10 of 128 bits
    digest = number & (2**64 - 1)
    return shard, digest - 2**63
