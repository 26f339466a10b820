"""What the command line asks of a local system: start it in the background, its status, its end, shell exports.

These functions print nothing; they return values and raise `LocalError`s.
"""

import json
import os
import select
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidemill.local.control import Control
from tidemill.local.errors import LocalError, NotRunning, StartFailed
from tidemill.local.logs import LogFile
from tidemill.local.state import StateDir, default_state_dir
from tidemill.local.system import LocalSystem


def status(state_dir: Path | None = None) -> dict[str, Any]:
    """The object of `tidemill status --json`: addresses, secrets, and `processes` of `{name, pid, state}`.

    Agents are listed while they run. Raises `NotRunning`.
    """
    runtime = StateDir(state_dir or default_state_dir()).runtime()
    control = Control(runtime["control"])
    processes = control.services() + [process for process in control.list() if process["exit"] is None]
    return {
        **{name: runtime[name] for name in ("url", "token", "redis", "flower", "store")},
        "processes": [{name: process[name] for name in ("name", "pid", "state")} for process in processes],
    }


def environment(state_dir: Path | None = None) -> dict[str, str]:
    """The variables of `tidemill env`: for client, command line and any S3 tool. Raises `NotRunning`."""
    runtime = StateDir(state_dir or default_state_dir()).runtime()
    store = runtime["store"]
    return {
        "TIDEMILL_URL": runtime["url"],
        "TIDEMILL_TOKEN": runtime["token"],
        "AWS_ENDPOINT_URL": store["endpoint"],
        "AWS_ACCESS_KEY_ID": store["access_key"],
        "AWS_SECRET_ACCESS_KEY": store["secret_key"],
        "AWS_REGION": store["region"],
    }


def env_exports(state_dir: Path | None = None) -> str:
    """`environment` as lines for a shell: `eval "$(tidemill env)"`."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment(state_dir).items())


def down(state_dir: Path | None = None, *, timeout_s: float = 40.0) -> int:
    """Ends the system and waits until it is gone; returns the process id that it had. Raises `NotRunning`."""
    state = StateDir(state_dir or default_state_dir())
    pid = state.holder()
    if pid is None:
        raise NotRunning(f"no Tidemill is up on {state.path}")
    gone = _ends(pid)
    _signal(pid, signal.SIGTERM)
    give_up = time.monotonic() + timeout_s
    while state.holder() == pid or not gone():
        if time.monotonic() >= give_up:
            raise LocalError(f"process {pid} has not ended within {timeout_s:g} s", hint=f"End it with: kill -9 {pid}")
        time.sleep(0.02)
    return pid


def _ends(pid: int) -> Callable[[], bool]:
    """A question that becomes true when the process has ended, also while nobody has waited for it."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return lambda: True  # gone, or a kernel without pidfd: then its lock alone tells

    def ended() -> bool:
        if not select.select([handle], [], [], 0)[0]:
            return False
        os.close(handle)
        return True

    return ended


def up_detached(
    make: Callable[[], LocalSystem], state_dir: Path | None = None, *, timeout_s: float = 120.0
) -> dict[str, Any]:
    """Runs a system in a process of its own that outlives this one; returns its addresses once it is ready.

    `make` is called in that process; what it prints goes to `logs/up.log`. Raises what the start raised, as a
    `LocalError` with the same text and code. To be called before this process has threads: it forks.
    """
    state = StateDir(state_dir or default_state_dir())
    state.acquire()  # refuses here, in the foreground, when the folder is taken or cannot be used
    state.release()
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.setsid()
        # The second fork gives it to init: this process never has to wait for it.
        if os.fork() == 0:
            _be_the_daemon(make, LogFile(state.logs / "up.log"), writing)
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    return _await_report(reading, state, timeout_s)


def _be_the_daemon(make: Callable[[], LocalSystem], log: LogFile, report: int) -> None:
    code = 1
    try:
        log.rotate()
        with log.open() as output, open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        with open(report, "w", encoding="utf-8") as pipe:
            sent: list[int] = []

            def tell(message: dict[str, Any]) -> None:
                if not sent:
                    sent.append(pipe.write(json.dumps(message)))
                    pipe.close()

            try:
                make().run(on_ready=lambda addresses: tell({"ready": addresses}))
                code = 0
            except LocalError as error:
                tell({"failed": str(error), "hint": error.hint, "code": error.error_code})
                print(error, file=sys.stderr, flush=True)
    except BaseException as error:  # noqa: BLE001  (nobody is above us: the log is all there is)
        traceback.print_exception(error)
        sys.stderr.flush()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _await_report(reading: int, state: StateDir, timeout_s: float) -> dict[str, Any]:
    text = b""
    give_up = time.monotonic() + timeout_s
    try:
        while True:
            if not select.select([reading], [], [], max(0.0, give_up - time.monotonic()))[0]:
                raise StartFailed("tidemill up", f"not ready after {timeout_s:g} s", hint=f"Read {state.logs}/up.log")
            piece = os.read(reading, 65536)
            if not piece:
                break
            text += piece
    finally:
        os.close(reading)
    if not text:
        tail = LogFile(state.logs / "up.log").tail()
        raise StartFailed("tidemill up", "it ended without a word", tail)
    report = json.loads(text)
    if "failed" in report:
        raise LocalError(report["failed"], hint=report["hint"], code=report["code"])
    ready: dict[str, Any] = report["ready"]
    return ready


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise LocalError(f"process {pid} belongs to another user", hint="Run the command as that user.") from error
