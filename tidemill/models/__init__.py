"""The wire and file formats as strict pydantic models; their JSON Schema is in docs/reference/schemas/."""

from tidemill.models.event import BucketEvent
from tidemill.models.function import FunctionRecord, FunctionSpec, Objective, Output, Trigger, place_of, revision_of
from tidemill.models.job import (
    Candidate,
    Cost,
    Event,
    Job,
    JobError,
    JobInput,
    JobState,
    OutputObject,
    Placement,
    Progress,
    object_job_id,
    request_job_id,
    settled_place,
)
from tidemill.models.pool import PoolRecord, PoolsFile, PoolSpec
from tidemill.models.record import CancelRecord, CommitOutput, CommitRecord, EpochRecord, Manifest, RequestRecord

__all__ = [
    "BucketEvent",
    "CancelRecord",
    "Candidate",
    "CommitOutput",
    "CommitRecord",
    "Cost",
    "EpochRecord",
    "Event",
    "FunctionRecord",
    "FunctionSpec",
    "Job",
    "JobError",
    "JobInput",
    "JobState",
    "Manifest",
    "Objective",
    "Output",
    "OutputObject",
    "Placement",
    "PoolRecord",
    "PoolSpec",
    "PoolsFile",
    "Progress",
    "RequestRecord",
    "Trigger",
    "object_job_id",
    "place_of",
    "request_job_id",
    "revision_of",
    "settled_place",
]
