"""The control socket: starting and stopping processes by name inside a running `tidemill up`.

The local scaler uses it, so that agents are children of the supervisor: they outlive a restart of the placement
service, and end with the system. The socket lies in a private folder (mode 0700), and each request carries a token:
functions may run as the same user, and find the path of every socket in /proc/net/unix. The *address* is path and
token in one, `PATH#TOKEN`. One JSON object a line each way, requests with `"token"` besides:

    {"op": "start", "name": "...", "argv": [...], "env": {...}}     -> {"process": {...}}
    {"op": "stop", "name": "...", "grace_s": 10}                    -> {"process": {...} or null}
    {"op": "list"}                                                  -> {"processes": [...], "services": [...]}
    anything that cannot be done                                    -> {"error": "...", "hint": "..."}

The folder lies below the system's temporary one and not in the state folder, since the path of a socket may have no
more than 107 bytes.
"""

import asyncio
import contextlib
import dataclasses
import hmac
import json
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tidemill.local.errors import LocalError, NotRunning
from tidemill.local.supervisor import ProcessInfo, Supervisor

_MOST_BYTES = 4 * 2**20
_SOCKET_PATH_BYTES = 107
_FOLDER_PREFIX = "tidemill-up-"


class ControlServer:
    """Serves a supervisor on a new socket while open; `address` is what its clients need."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._folder = _private_folder()
        self._path = self._folder / "control"
        self._token = secrets.token_hex(16)

    @property
    def address(self) -> str:
        return f"{self._path}#{self._token}"

    async def open(self) -> None:
        """Listens from now on."""
        self._server = await asyncio.start_unix_server(self._serve, self._path, limit=_MOST_BYTES)

    async def close(self) -> None:
        """Stops listening, hangs up on everybody, and removes the socket."""
        if self._server is not None:
            self._server.close()
        for serving in self._serving:
            serving.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        this = asyncio.current_task()
        assert this is not None
        self._serving.add(this)
        try:
            while line := await reader.readline():
                writer.write(json.dumps(self._answer(line)).encode() + b"\n")
                await writer.drain()
        except (ConnectionError, ValueError):
            # It went away, or sent a line beyond the limit: its own loss.
            return
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            self._serving.discard(this)

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            if not hmac.compare_digest(str(request["token"]).encode(), self._token.encode()):
                return {"error": "the token is wrong", "hint": "Ask with the address that runtime.json says."}
            operation = request["op"]
            if operation == "start":
                started = self._supervisor.start_task(request["name"], request["argv"], request["env"])
                return {"process": dataclasses.asdict(started)}
            if operation == "stop":
                stopped = self._supervisor.stop_task(request["name"], float(request["grace_s"]))
                return {"process": stopped and dataclasses.asdict(stopped)}
            if operation == "list":
                return {"processes": _all(self._supervisor.tasks()), "services": _all(self._supervisor.services())}
            return {"error": f"there is no operation {operation!r}"}
        except LocalError as error:
            return {"error": str(error), "hint": error.hint}
        except (KeyError, TypeError, ValueError, OSError) as error:
            return {"error": f"{type(error).__name__}: {error}"}


class Control:
    """The client: plain blocking calls, one short connection each. Raises `NotRunning` when nobody listens.

    A process is `{"name", "kind", "pid", "state", "started_at", "exit"}`; `state` is starting, running, stopping or
    exited; `started_at` in seconds since 1970; `exit` the exit code, negative for a signal, None while it runs.
    """

    def __init__(self, address: str, *, timeout_s: float = 10.0) -> None:
        self._path, _, self._token = address.rpartition("#")
        self._timeout_s = timeout_s

    def start(self, name: str, argv: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]:
        """Starts a process with exactly `env`; one of this name that runs already stays. It is never restarted."""
        answer = self._ask({"op": "start", "name": name, "argv": list(argv), "env": dict(env)})
        process: dict[str, Any] = answer["process"]
        return process

    def stop(self, name: str, grace_s: float = 10.0) -> dict[str, Any] | None:
        """Sends SIGTERM now and SIGKILL after `grace_s`; returns at once. None when there is no such process."""
        process: dict[str, Any] | None = self._ask({"op": "stop", "name": name, "grace_s": grace_s})["process"]
        return process

    def services(self) -> list[dict[str, Any]]:
        """The kept services; `pid` is None while one is not running."""
        services: list[dict[str, Any]] = self._ask({"op": "list"})["services"]
        return services

    def list(self) -> list[dict[str, Any]]:
        """The processes started here: those that run, and the last hundred that ended with their exit status."""
        return [*self._ask({"op": "list"})["processes"]]

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(self._timeout_s)
                connection.connect(self._path)
                connection.sendall(json.dumps({**request, "token": self._token}).encode() + b"\n")
                with connection.makefile("rb") as lines:
                    line = lines.readline()
        except OSError as error:
            raise NotRunning(f"nobody answers on the control socket {self._path}: {error.strerror or error}") from error
        if not line:
            raise NotRunning(f"the control socket {self._path} was closed")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise LocalError(answer["error"], hint=answer.get("hint"))
        return answer


def remove_leftover(address: str) -> None:
    """Removes the socket folder of a system that was killed."""
    folder = Path(address.rpartition("#")[0]).parent
    if folder.name.startswith(_FOLDER_PREFIX):
        shutil.rmtree(folder, ignore_errors=True)


def _all(processes: Sequence[ProcessInfo]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(process) for process in processes]


def _private_folder() -> Path:
    for parent in (tempfile.gettempdir(), "/tmp"):  # noqa: S108  (mkdtemp makes it private)
        # Eight random characters and the name of the socket come on top.
        if len(os.fsencode(parent)) + len(_FOLDER_PREFIX) + 18 <= _SOCKET_PATH_BYTES:
            return Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX, dir=parent))
    raise LocalError("no temporary folder with a short enough path for a socket", hint="Set TMPDIR to a short path.")
