"""The durable formats of the platform bucket: request, cancel and commit record, manifest, epoch."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from tidemill.models.base import Model
from tidemill.models.job import Cost, Event, JobError, JobInput, OutputObject, Placement

Final = Literal["succeeded", "failed", "cancelled"]


class RequestRecord(Model):
    """An accepted API call, written by If-None-Match before the caller hears 202.

    `fingerprint` is the SHA-256 of function, params and payload digest: the same idempotency key with another one is
    refused. A retry is a request record too, with `generation` > 1 and the job it repeats.
    """

    job_id: str
    function: str
    generation: int = 1
    owner: str = "default"
    input: JobInput
    params: dict[str, Any] = Field(default_factory=dict)
    fingerprint: str = ""
    key: str | None = None
    created_at: float


class CancelRecord(Model):
    """The accepted wish to end a running job, kept until the job is over, so that a loss of Redis does not lose it. It
    says all that is needed to end the job as cancelled."""

    job_id: str
    function: str
    revision: str
    generation: int
    by: str
    owner: str = "default"
    input: JobInput
    params: dict[str, Any] = Field(default_factory=dict)
    created_at: float
    asked_at: float


class CommitOutput(Model):
    """One output file. Small ones lie inline (base64), large ones in `attempt_key` of the platform bucket."""

    name: str
    bucket: str
    key: str
    size: int
    sha256: str
    content_type: str | None = None
    inline: str | None = None
    attempt_key: str | None = None

    def published(self, key: str) -> OutputObject:
        """The object that it becomes under this key, which `on_conflict: suffix` may have numbered."""
        return OutputObject(
            bucket=self.bucket,
            key=key,
            size=self.size,
            content_type=self.content_type,
            sha256=self.sha256,
            name=self.name,
        )


class CommitRecord(Model):
    """The object that decides which attempt counts, written once by If-None-Match. Each end of a job has one.

    `claimed_at` is when the ledger gave the job to this attempt, by the ledger's clock (`started_at` and `committed_at`
    are by the agent's); older records have none.
    """

    job_id: str
    function: str
    revision: str
    generation: int
    outcome: Final
    nonce: str
    epoch: int
    attempt: int
    owner: str = "default"
    pool: str | None = None
    agent: str | None = None
    input: JobInput
    params: dict[str, Any] = Field(default_factory=dict)
    outputs: tuple[CommitOutput, ...] = ()
    on_conflict: Literal["fail", "overwrite", "suffix"] = "fail"
    error: JobError | None = None
    placement: Placement | None = None
    cost: Cost = Cost()
    created_at: float
    claimed_at: float | None = None
    started_at: float | None = None
    committed_at: float
    run_s: float = 0.0
    history: tuple[Event, ...] = ()


class Manifest(Model):
    """The object written last for each finished job and generation: the durable truth about its results."""

    job_id: str
    function: str
    revision: str
    generation: int
    state: Final
    owner: str = "default"
    pool: str | None = None
    agent: str | None = None
    attempt: int = 0
    input: JobInput
    params: dict[str, Any] = Field(default_factory=dict)
    outputs: tuple[OutputObject, ...] = ()
    left: tuple[OutputObject, ...] = ()  # outputs of older generations, or of a publication that stopped
    error: JobError | None = None
    placement: Placement | None = None
    cost: Cost = Cost()
    created_at: float
    started_at: float | None = None
    finished_at: float
    run_s: float = 0.0
    history: tuple[Event, ...] = ()


class EpochRecord(Model):
    """The ledger's life number in the bucket. A Redis that knows an older one, or none, starts the next epoch."""

    epoch: int
    sequence: int
    written_at: float
