"""The pools file: agents of one kind in one place, with a price."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator

from tidemill.models.base import Bytes, Model, Seconds

PoolName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,38}$")]


class PoolGpu(Model):
    kind: str
    memory: Bytes
    oversubscribe: Annotated[float, Field(ge=1.0)] = 1.0


class Price(Model):
    """US dollars for one agent's hour, and the shortest time that is billed at each start."""

    usd_per_hour: Annotated[float, Field(ge=0)]
    minimum: Seconds = 0.0


class Agents(Model):
    min: Annotated[int, Field(ge=0)] = 0
    max: Annotated[int, Field(ge=0)] = 1
    start: Seconds = 5.0


class Network(Model):
    egress_usd_per_gb: Annotated[float, Field(ge=0)] = 0.0
    mbit: Annotated[float, Field(gt=0)] = 1000.0


class Kubernetes(Model):
    context: str
    namespace: str = "tidemill"


class Where(Model):
    kubernetes: Kubernetes


class PoolSpec(Model):
    """One pool. Without `gpu` it is a CPU pool; `where: local` starts its agents as processes of this machine."""

    name: PoolName
    cloud: str = "local"
    region: str = "local"
    gpu: PoolGpu | None = None
    slots: Annotated[int, Field(ge=1, le=256)] = 1
    price: Price | Literal["catalogue"] = Price(usd_per_hour=0.0)
    agents: Agents = Agents()
    network: Network = Network()
    spot: bool = False
    idle_timeout: Seconds | Literal["auto"] = "auto"
    env: dict[str, str] = Field(default_factory=dict)
    where: Literal["local"] | Where = "local"

    @field_validator("env", mode="before")
    @classmethod
    def _text(cls, value: object) -> object:
        if isinstance(value, dict):
            return {
                k: str(v) if isinstance(v, int | float) and not isinstance(v, bool) else v for k, v in value.items()
            }
        return value


class PoolRecord(PoolSpec):
    """A pool as the platform bucket keeps it: the spec, and what its operator told it since."""

    draining: bool = False  # it takes no more work

    @property
    def spec(self) -> PoolSpec:
        return PoolSpec.model_validate(self.model_dump(exclude={"draining"}))

    @classmethod
    def of(cls, spec: PoolSpec, draining: bool) -> PoolRecord:
        return cls.model_validate({**spec.model_dump(), "draining": draining})


class PoolsFile(Model):
    pools: tuple[PoolSpec, ...]
