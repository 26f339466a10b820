"""Agents as processes of this machine, children of `tidemill up`, started through its control socket.

They are the supervisor's and not ours, so they outlive a restart of the placement service and end with the system.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tidemill.local.control import Control
from tidemill.local.errors import LocalError
from tidemill.models import PoolSpec
from tidemill_placement.scalers.api import AgentState, ScalerError
from tidemill_placement.view import pool_of

# What only other services need; agents run other people's code in their children.
_KEPT_BACK = tuple(f"TIDEMILL_{name}" for name in ("GATEWAY__", "FLOWER__", "LOCAL__", "POOLS_FILE", "FUNCTIONS_DIR"))


class ControlSocket(Protocol):
    """What is needed of `tidemill.local.control.Control`."""

    def start(self, name: str, argv: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]: ...
    def stop(self, name: str, grace_s: float) -> dict[str, Any] | None: ...
    def list(self) -> list[dict[str, Any]]: ...


class LocalScaler:
    """Agents of pools with `where: local`.

    Args:
        control: the control socket.
        environment: what agents inherit.
        grace_s: seconds between the polite end and the other one.
    """

    def __init__(self, control: ControlSocket, environment: Mapping[str, str], grace_s: float) -> None:
        self._control = control
        self._environment = {name: value for name, value in environment.items() if not name.startswith(_KEPT_BACK)}
        self._grace_s = grace_s

    @classmethod
    def connect(cls, address: str, grace_s: float) -> LocalScaler:
        """Give the scaler of the system whose control socket has this address."""
        return cls(Control(address), os.environ, grace_s)

    def serves(self, pool: PoolSpec) -> bool:
        return pool.where == "local"

    def observe(self, pool: PoolSpec) -> list[AgentState]:
        try:
            processes = self._control.list()
        except LocalError as error:
            raise ScalerError(str(error)) from error
        return [_state(process) for process in processes if pool_of(process["name"]) == pool.name]

    def start(self, pool: PoolSpec, agent: str) -> None:
        argv = [sys.executable, "-P", "-m", "tidemill", "agent", "--pool", pool.name, "--name", agent]
        try:
            self._control.start(agent, argv, {**self._environment, **pool.env})
        except LocalError as error:
            raise ScalerError(str(error)) from error

    def stop(self, agent: str) -> None:
        try:
            self._control.stop(agent, self._grace_s)
        except LocalError as error:
            raise ScalerError(str(error)) from error


def _state(process: Mapping[str, Any]) -> AgentState:
    since = float(process.get("started_at") or 0.0)
    match process["state"]:
        case "running" | "stopping" as state:
            return AgentState(process["name"], state, since)
        case "starting":
            return AgentState(process["name"], "starting", since)
    status = process.get("exit")
    reason = f"signal {-status}" if status is not None and status < 0 else f"status {status}"
    return AgentState(process["name"], "ended", since, reason, failed=status not in (0, None))
