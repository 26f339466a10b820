"""Local agents through the control socket: what is asked of it, and what its answers mean."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tidemill.local.errors import LocalError
from tidemill.models import PoolSpec
from tidemill_placement.scalers import LocalScaler, ScalerError


class Socket:
    """Remembers what was asked."""

    def __init__(self) -> None:
        self.started: list[tuple[str, list[str], dict[str, str]]] = []
        self.stopped: list[tuple[str, float]] = []
        self.processes: list[dict[str, Any]] = []
        self.error: LocalError | None = None

    def start(self, name: str, argv: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        self.started.append((name, list(argv), dict(env)))
        return {}

    def stop(self, name: str, grace_s: float) -> dict[str, Any] | None:
        self.stopped.append((name, grace_s))
        return None

    def list(self) -> list[dict[str, Any]]:
        if self.error is not None:
            raise self.error
        return self.processes


def _process(name: str, state: str, status: int | None = None) -> dict[str, Any]:
    return {"name": name, "kind": "task", "pid": 1, "state": state, "started_at": 5.0, "exit": status}


@pytest.fixture
def socket() -> Socket:
    return Socket()


def test_an_agent_is_started_with_its_pool_and_without_the_gateways_secrets(socket: Socket) -> None:
    environment = {
        "PATH": "/bin",
        "TIDEMILL_REDIS__URL": "redis://x",
        "TIDEMILL_GATEWAY__TOKEN": "secret",
        "TIDEMILL_LOCAL__CONTROL": "/socket",
    }
    scaler = LocalScaler(socket, environment, 30.0)
    scaler.start(PoolSpec(name="cpu", env={"OMP_NUM_THREADS": "2"}), "cpu-1a2b3c")
    ((name, argv, env),) = socket.started
    assert name == "cpu-1a2b3c"
    assert argv[-5:] == ["agent", "--pool", "cpu", "--name", "cpu-1a2b3c"]
    assert env == {"PATH": "/bin", "TIDEMILL_REDIS__URL": "redis://x", "OMP_NUM_THREADS": "2"}
    scaler.stop("cpu-1a2b3c")
    assert socket.stopped == [("cpu-1a2b3c", 30.0)]


def test_processes_are_told_apart_by_pool_and_say_how_they_ended(socket: Socket) -> None:
    socket.processes = [
        _process("cpu-000001", "running"),
        _process("cpu-000002", "exited", 0),
        _process("cpu-000003", "exited", -9),
        _process("cpu-000004", "stopping"),
        _process("cpu-fast-000005", "running"),
    ]
    states = LocalScaler(socket, {}, 30.0).observe(PoolSpec(name="cpu"))
    assert [(s.name, s.state, s.reason, s.failed) for s in states] == [
        ("cpu-000001", "running", "", False),
        ("cpu-000002", "ended", "status 0", False),
        ("cpu-000003", "ended", "signal 9", True),
        ("cpu-000004", "stopping", "", False),
    ]


def test_only_pools_of_this_machine_are_served(socket: Socket) -> None:
    scaler = LocalScaler(socket, {}, 30.0)
    assert scaler.serves(PoolSpec(name="cpu"))
    assert not scaler.serves(PoolSpec.model_validate({"name": "far", "where": {"kubernetes": {"context": "c"}}}))


def test_a_socket_that_does_not_answer_is_a_scaler_error_with_its_sentence(socket: Socket) -> None:
    socket.error = LocalError("nobody answers")
    scaler = LocalScaler(socket, {}, 30.0)
    with pytest.raises(ScalerError, match="nobody answers"):
        scaler.observe(PoolSpec(name="cpu"))
    with pytest.raises(ScalerError, match="nobody answers"):
        scaler.start(PoolSpec(name="cpu"), "cpu-1")
