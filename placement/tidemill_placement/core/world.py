"""What the planner sees and what it answers: frozen values, seconds, bytes and US dollars.

The service builds a `World` from the ledger; the simulator builds one from a trace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tidemill.models import FunctionRecord, Placement, PoolSpec
from tidemill_placement.core.predict import Estimates


@dataclass(frozen=True, slots=True)
class Rules:
    """The operator's numbers.

    `group_s`: short jobs are released together up to this many seconds of work a slot. `ahead_s`: one more job of an
    agent is released when a slot is predicted to be free within this time, or within the transfer of its input.
    """

    value_of_time_usd_per_hour: float = 3.0
    idle_timeout_s: float = 60.0
    group_s: float = 0.075
    group_max: int = 32
    ahead_s: float = 1.0
    notes: int = 32


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool. `can_start`: some scaler can start agents of it. `trouble`: why none may be started just now."""

    spec: PoolSpec
    draining: bool = False
    can_start: bool = True
    trouble: str | None = None

    @property
    def name(self) -> str:
        return self.spec.name


@dataclass(frozen=True, slots=True)
class Runner:
    """Slots of a function's revision that an agent holds ready (or is loading)."""

    function: str
    revision: str
    slots: int


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent, also one that was asked for and has not reported yet (`booting`).

    `released` and `running` count its jobs. `since` is when it was asked for, `quiet_since` when it last had work.
    `levels` gives for each function the last times at which 1, 2, … of its slots here were in use. An agent that is not
    `managed` was started by hand: no scaler can stop it, so none tries.
    """

    name: str
    pool: str
    slots: int
    state: Literal["booting", "ready", "draining"] = "ready"
    since: float = 0.0
    quiet_since: float = 0.0
    released: int = 0
    running: int = 0
    runners: tuple[Runner, ...] = ()
    levels: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    managed: bool = True


@dataclass(frozen=True, slots=True)
class Task:
    """A job that is bound to an agent: released to it, or running there since a time."""

    job_id: str
    function: str
    agent: str
    running: bool
    since: float
    size: int = 0


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job that waits. `attempt` counts the attempts so far."""

    id: str
    function: str
    owner: str
    created_at: float
    size: int = 0
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Queue:
    """The backlog of one function: `ready` jobs in all, the oldest of them listed."""

    function: str
    ready: int
    jobs: tuple[Waiting, ...]


@dataclass(frozen=True, slots=True)
class World:
    """All that the planner may know. Two equal worlds have equal plans."""

    now: float
    functions: Mapping[str, FunctionRecord] = field(default_factory=dict)
    pools: Mapping[str, Pool] = field(default_factory=dict)
    agents: tuple[Agent, ...] = ()
    backlog: tuple[Queue, ...] = ()
    tasks: tuple[Task, ...] = ()
    estimates: Estimates = field(default_factory=Estimates)
    rules: Rules = Rules()


@dataclass(frozen=True, slots=True)
class Release:
    job_id: str
    function: str
    agent: str
    placement: Placement


@dataclass(frozen=True, slots=True)
class Impossible:
    """A job that no pool can ever run. `reason` is for people."""

    job_id: str
    function: str
    reason: str
    placement: Placement


@dataclass(frozen=True, slots=True)
class Grant:
    """The next submits of a function may go straight to these agents, so many to each."""

    agents: Mapping[str, int]
    placement: Placement


@dataclass(frozen=True, slots=True)
class Plan:
    """What shall be done now.

    `wanted` maps each agent to `function@revision` -> slots; `starts` pools to numbers of agents; `notes` says why jobs
    still wait (the first ones in order); `scaling` gives `pool` -> agents and `pool/function` -> slots that should be.
    """

    releases: tuple[Release, ...] = ()
    wanted: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    starts: Mapping[str, int] = field(default_factory=dict)
    stops: tuple[str, ...] = ()
    grants: Mapping[str, Grant] = field(default_factory=dict)
    impossible: tuple[Impossible, ...] = ()
    notes: tuple[tuple[str, Placement], ...] = ()
    scaling: Mapping[str, int] = field(default_factory=dict)


def runner_key(record: FunctionRecord) -> str:
    """Give the name under which runners of a function's current revision are wanted."""
    return f"{record.name}@{record.revision}"
