"""Run `uv`, line by line, within a time limit, and without a secret of ours.

A requirement without a wheel is built from source, which runs code of strangers. It therefore gets a chosen part of the
agent's environment (network, cache, index), not the store's keys and the tokens that stand there too.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from tidemill_workers.environments.errors import EnvironmentFailed, failure, tail

_PASSED = {
    "ALL_PROXY",
    "CURL_CA_BUNDLE",
    "HOME",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "NETRC",
    "NO_PROXY",
    "PATH",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TMPDIR",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
}
# An environment of the caller's, and settings that would lead the installation elsewhere or stop it.
_KEPT_BACK = {"UV_PROJECT_ENVIRONMENT", "UV_PYTHON", "UV_SYSTEM_PYTHON", "UV_REQUIRE_HASHES", "UV_NO_DEPS"}
_LINES_KEPT = 400
_POLL_S = 0.1


def installer_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Give the part of an environment that the installer gets."""
    passed = {
        name: value
        for name, value in environment.items()
        if name.upper() in _PASSED or (name.startswith("UV_") and name not in _KEPT_BACK)
    }
    return passed | {"NO_COLOR": "1", "UV_NO_PROGRESS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def run(
    arguments: list[str | Path],
    *,
    cwd: Path,
    timeout_s: float,
    what: str,
    on_line: Callable[[str], None] | None,
) -> None:
    """Run `uv` with these arguments; `what` begins the message of the EnvironmentFailed that a failure raises.

    Everything that it started has ended when this returns or raises.
    """
    from uv import find_uv_bin

    lines: deque[str] = deque(maxlen=_LINES_KEPT)

    def take(line: str) -> None:
        lines.append(line)
        if on_line is not None:
            on_line(line)

    try:
        process = subprocess.Popen(
            [find_uv_bin(), *map(str, arguments)],
            cwd=cwd,
            env=installer_environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=0o022,  # runners may have another user
        )
    except OSError as error:
        raise EnvironmentFailed(
            f"{what}: uv could not be started ({error}). Install it there: pip install 'tidemill[worker]'.",
            hint="Install uv on the agent's host: pip install 'tidemill[worker]'.",
        ) from error
    late = False
    try:
        late = _follow(process, time.monotonic() + timeout_s, take)
    finally:
        # before the reaping, while the group's number surely is ours
        _kill_group(process)
        code = process.wait()
        assert process.stdout is not None
        process.stdout.close()
    if late:
        raise EnvironmentFailed(
            f"{what}: not ready after {timeout_s:g} s. Ask for fewer packages, choose versions that have wheels, "
            "or give the agent's host a faster way to its package index.",
            hint="Ask for fewer packages, choose versions that have wheels, or use a package index nearby.",
            log_tail=tail(list(lines)),
        )
    if code != 0:
        raise failure(what, list(lines))


def _follow(process: subprocess.Popen[bytes], deadline: float, take: Callable[[str], None]) -> bool:
    """Give each line to `take` until the process has ended; True when it was still running at the deadline.

    The end of the process counts, not the end of its output: a build may leave a child that keeps the pipe open.
    """
    assert process.stdout is not None
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            ended = _has_ended(process)
            if selector.select(0 if ended else _POLL_S):
                chunk = os.read(process.stdout.fileno(), 65536)
                *whole, rest = (rest + chunk).split(b"\n")
                for line in whole:
                    take(line.decode(errors="replace").rstrip())
                if not chunk:  # the pipe is closed, so only the end of the process is left to wait for
                    selector.unregister(process.stdout)
            elif ended:
                break
            if not ended and time.monotonic() >= deadline:
                return True
    if rest:
        take(rest.decode(errors="replace").rstrip())
    return False


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether the process is over, asked so that it stays unreaped and keeps its number."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """End the installer and the builds that it started; a group that is gone already is fine."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
