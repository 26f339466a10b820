"""The function file: what an owner deploys. `tidemill.models.files` reads it from YAML with line numbers."""

from __future__ import annotations

import hashlib
import re
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from tidemill.models.base import Bytes, Model, Seconds

FunctionName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,38}$")]
BucketName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")]
_HANDLER = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")


class Objective(StrEnum):
    latency = "latency"
    balanced = "balanced"
    cost = "cost"
    deadline = "deadline"


class Trigger(Model):
    """A rule that turns an object into a job: a bucket, a prefix, suffixes (any of them), and a size limit."""

    bucket: BucketName
    prefix: str = ""
    suffix: tuple[str, ...] = ()
    max_size: Bytes | None = None
    shared: bool = False

    @field_validator("suffix", mode="before")
    @classmethod
    def _one_suffix(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    def matches(self, bucket: str, key: str) -> bool:
        """Whether an object of this bucket and key belongs to the trigger; suffixes compare without case."""
        if bucket != self.bucket or not key.startswith(self.prefix):
            return False
        return not self.suffix or key.lower().endswith(tuple(s.lower() for s in self.suffix))

    def overlaps(self, other: Trigger) -> bool:
        """Whether some key could match both triggers."""
        if self.bucket != other.bucket:
            return False
        if not (self.prefix.startswith(other.prefix) or other.prefix.startswith(self.prefix)):
            return False
        if not self.suffix or not other.suffix:
            return True
        pairs = [(a.lower(), b.lower()) for a in self.suffix for b in other.suffix]
        return any(a.endswith(b) or b.endswith(a) for a, b in pairs)


class Output(Model):
    """Where results go. In `key`: `{key}` is the input key without the trigger's prefix, `{name}` a result's name."""

    bucket: BucketName
    prefix: str = ""
    key: str = "{key}/{name}"
    on_conflict: Literal["fail", "overwrite", "suffix"] = "fail"

    @field_validator("key")
    @classmethod
    def _fields(cls, value: str) -> str:
        rest = value.replace("{key}", "").replace("{name}", "")
        if "{" in rest or "}" in rest:
            raise ValueError("only {key} and {name} may stand in braces")
        if "{key}" not in value:
            raise ValueError("without {key} the results of all inputs would have one key")
        return value


class Gpu(Model):
    memory: Bytes
    sharing: Literal["shared", "fit", "exclusive"] = "shared"
    kinds: tuple[str, ...] = ()


class Resources(Model):
    gpu: Gpu | None = None
    cpu: Annotated[float, Field(gt=0)] = 1.0
    memory: Bytes = 512 * 2**20


class Allow(Model):
    """Where a job may run; an empty list allows all. Shell patterns serve, for example `ch-*`."""

    clouds: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()


class PlacementRules(Model):
    objective: Objective = Objective.balanced
    deadline: Seconds | None = None
    max_cost_usd: Annotated[float, Field(gt=0)] | None = None
    allow: Allow = Allow()
    spot: Literal["allowed", "never", "only"] = "allowed"

    @model_validator(mode="after")
    def _deadline_given(self) -> PlacementRules:
        if self.objective is Objective.deadline and self.deadline is None:
            raise ValueError("objective: deadline needs a deadline, for example deadline: 2m")
        return self


class Scaling(Model):
    """Slots over all pools. `idle_timeout: auto` is the break-even time of the pool."""

    min: Annotated[int, Field(ge=0)] = 0
    max: Annotated[int, Field(ge=1)] = 100
    idle_timeout: Seconds | Literal["auto"] = "auto"


class Batch(Model):
    max_size: Annotated[int, Field(ge=1)] = 1
    max_wait: Seconds = 0.02


class EnvironmentSpec(Model):
    """The virtual environment of a revision. With `no_deps` the requirements are a complete lock."""

    requirements: str | None = None
    no_deps: bool = False

    @field_validator("requirements")
    @classmethod
    def _inside(cls, value: str | None) -> str | None:
        if value is not None and (PurePosixPath(value).is_absolute() or ".." in PurePosixPath(value).parts):
            raise ValueError("the requirements file must lie in the function's folder")
        return value


class Limits(Model):
    timeout: Annotated[Seconds, Field(gt=0)] = 600.0
    attempts: Annotated[int, Field(ge=1, le=100)] = 3


class FunctionSpec(Model):
    """One function as its owner wrote it. Only `name` and `handler` (or `command`) are required."""

    name: FunctionName
    handler: str | None = None
    command: tuple[str, ...] | None = None
    image: str | None = None
    trigger: tuple[Trigger, ...] = ()
    output: Output | None = None
    resources: Resources = Resources()
    placement: PlacementRules = PlacementRules()
    scaling: Scaling = Scaling()
    batch: Batch = Batch()
    environment: EnvironmentSpec = EnvironmentSpec()
    limits: Limits = Limits()
    env: dict[str, str] = Field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    params: dict[str, dict[str, Any]] = Field(default_factory=dict)
    size_features: tuple[str, ...] = ()

    @field_validator("trigger", mode="before")
    @classmethod
    def _one_trigger(cls, value: Any) -> Any:
        return [value] if isinstance(value, dict) else value

    @field_validator("env", mode="before")
    @classmethod
    def _text(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return {
                k: str(v) if isinstance(v, int | float) and not isinstance(v, bool) else v for k, v in value.items()
            }
        return value

    @field_validator("handler")
    @classmethod
    def _handler_form(cls, value: str | None) -> str | None:
        if value is not None and not _HANDLER.match(value):
            raise ValueError(f"{value!r} is not module:object; write for example captions:Caption")
        return value

    @model_validator(mode="after")
    def _whole(self) -> FunctionSpec:
        if (self.handler is None) == (self.command is None):
            raise ValueError("give either handler: module:object or command: [program, argument]")
        if self.output is not None:
            probe = self.output.prefix
            for trigger in self.trigger:
                same = trigger.bucket == self.output.bucket
                if same and (probe.startswith(trigger.prefix) or trigger.prefix.startswith(probe)):
                    raise ValueError(
                        f"output {self.output.bucket}/{probe} lies under its own trigger "
                        f"{trigger.bucket}/{trigger.prefix}: each result would start the function again; "
                        "use another bucket or a prefix outside it"
                    )
        return self

    def trigger_for(self, bucket: str, key: str) -> Trigger | None:
        """The first trigger that matches an object, or None."""
        return next((t for t in self.trigger if t.matches(bucket, key)), None)


class FunctionRecord(Model):
    """A deployed function: its spec, the code archive, and who deployed it when. Kept in the platform bucket.

    A trigger begins with the deploy that brought its bucket and prefix (`places_since`, by `place_of`), by the store's
    clock; older objects start nothing, save those below a place of `replayed` (`bucket/prefix`), whatever their age.
    `triggers_since` is the begin of all that have no time of their own.
    """

    spec: FunctionSpec
    revision: str
    code_sha256: str | None = None
    code_size: int = 0
    owner: str = "default"
    deployed_at: float
    triggers_since: float
    places_since: dict[str, float] = Field(default_factory=dict)
    replayed: tuple[str, ...] = ()
    deleted_at: float | None = None

    @property
    def name(self) -> str:
        return self.spec.name

    def since(self, trigger: Trigger) -> float:
        """When a trigger began, in seconds since 1970 by the store's clock."""
        return self.places_since.get(place_of(trigger), self.triggers_since)

    def takes(self, trigger: Trigger, key: str, last_modified: int) -> bool:
        """Whether an object that the trigger matches is old enough for it; the store's times are whole seconds."""
        if last_modified >= int(self.since(trigger)):
            return True
        return bool(self.replayed) and f"{trigger.bucket}/{key}".startswith(self.replayed)


def place_of(trigger: Trigger) -> str:
    """Give the place that a trigger watches; while it stays, the trigger stays the same one."""
    return f"{trigger.bucket}/{trigger.prefix}"


def revision_of(spec: FunctionSpec, code_sha256: str | None) -> str:
    """Give the revision of a spec and its code: 12 hex digits of a SHA-256, so an unchanged deploy is the same one."""
    text = spec.model_dump_json(exclude_defaults=True) + "\n" + (code_sha256 or "")
    return hashlib.sha256(text.encode()).hexdigest()[:12]
