"""The shapes of the answers, for /openapi.json.

Routes write their JSON themselves (`wire`); the integration tests compare the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from tidemill.ledger.api import AgentReport
from tidemill.models import FunctionRecord, Job, OutputObject, PoolSpec
from tidemill.models.base import Model
from tidemill_gateway.intake.canary import Health
from tidemill_gateway.replay import Replayed


class Jobs(Model):
    """The jobs of a call with several files, in the order of the files."""

    jobs: list[Job]


class JobPage(Model):
    jobs: list[Job]
    cursor: str | None  # of the next page; null on the last one


class Ran(Model):
    """`result` is the value of `result.json`, when the job succeeded and the value is small (`result_inline`)."""

    job: Job
    result_inline: bool
    result: Any


class UploadAddress(Model):
    """Send `headers` with the PUT. `expires_at` in seconds since 1970 (UTC)."""

    url: str
    method: Literal["PUT"]
    headers: dict[str, str]
    expires_at: float


class LinkedOutput(OutputObject):
    name: str
    url: str  # a presigned GET


class Outputs(Model):
    outputs: list[LinkedOutput]


class LogRow(Model):
    position: str
    at: float
    stream: str
    text: str


class Log(Model):
    lines: list[LogRow]
    next: str
    done: bool


class IgnoredObject(Model):
    bucket: str
    key: str
    reason: str
    at: float


class Ignored(Model):
    ignored: list[IgnoredObject]


class DamagedRecord(Model):
    key: str
    reason: str


class Damaged(Model):
    damaged: list[DamagedRecord]


class FunctionShown(FunctionRecord):
    """A function as it was deployed, with its name on top."""

    shown_name: str = Field(alias="name")


class Functions(Model):
    functions: list[FunctionShown]


@dataclass(kw_only=True)
class Replay(Replayed):
    """What a replay found and did."""

    function: str
    dry_run: bool


class Live(Model):
    """What runs in a pool, as the ledger counts it."""

    agents: int
    slots: int
    released: int
    running: int


class PoolShown(PoolSpec):
    draining: bool
    live: Live


class Pools(Model):
    pools: list[PoolShown]


class AgentList(Model):
    agents: list[AgentReport]


class ScalingValue(Model):
    pool: str
    function: str | None = None  # absent for the agents of a pool
    value: int


class Alive(Model):
    status: Literal["ok"]


class Readiness(Model):
    """`checks` has `ok` or what is wrong, by name; `events` whether bucket events come, which it can do without."""

    ready: bool
    checks: dict[str, str]
    events: Health
