"""Build environments, and find them again.

Below the root stand

    <name>/                    a complete environment; <name> is 20 hex digits of what it depends on
    .<name>.lock               held (flock) by the process that builds or removes it
    .<name>.<random>.partial   being built or removed; whoever holds the lock removes what an earlier holder left

They are made with `uv venv --relocatable`, so that the folder can be renamed when it is complete: `bin/python` is a
link to the base interpreter, and scripts find it beside themselves. The packages of the interpreter that is named stay
out of sight, also when it is the Python of a virtual environment (uv follows that to its base).

What removes environments looks at their last use, the time of the marker, which every `ensure` sets.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tidemill_workers.environments import installer
from tidemill_workers.environments.errors import EnvironmentFailed

TIMEOUT_S = 1800.0
UNUSED_S = 7 * 86400.0
_LOCK_POLL_S = 0.1
_MARKER = "tidemill-environment.json"
_ASK = (
    "import json, platform, sys, sysconfig; print(json.dumps([platform.python_version(), "
    "sys.implementation.name, sysconfig.get_platform(), sys.base_prefix]))"
)
# Lines that lead to other files, whose content the name of the environment does not cover.
_LOCAL = re.compile(
    r"^\s*(-[recf]|--(requirement|constraint|editable|find-links)\b|\.\s*$|file:|(?!\w+(\+\w+)?://)[^-#\s;@][^#\s;@]*/)"
    r"|^[^#\n]*@\s*(?!(git\+)?https?:|git\+ssh:)\S*/"
    r"|^\s*[^-#\s;@]\S*\.(whl|zip|tar\.gz)\s*$",
    re.MULTILINE,
)
_HASHED = re.compile(r"--hash[= ]sha(256|384|512):")


@dataclass(frozen=True)
class Environment:
    """A complete environment.

    `python`: what starts a runner in it (use `-I`). `path`: its folder. `built_s`: seconds that this call spent
    building, 0 when it was there. `name`: what `prune` keeps.
    """

    python: Path
    path: Path
    built_s: float

    @property
    def name(self) -> str:
        return self.path.name


class EnvironmentBuilder:
    """Gives the environments of one host; any number of processes and threads may use the same root.

    `python` is the interpreter that environments are made from, the running one by default.
    """

    def __init__(self, root: Path, python: str | None = None) -> None:
        self.root = root.absolute()
        self._python = python or sys.executable

    def ensure(
        self,
        key: str,
        requirements: Path | None,
        no_deps: bool = False,
        on_line: Callable[[str], None] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Environment:
        """Give the environment of the revision `key`, built first when it is not there.

        Without requirements it is an empty one, shared by all functions that need none. Lines of progress go to
        `on_line`. Raises EnvironmentFailed, also when another process builds the same one for longer than `timeout_s`.
        """
        content = _read(requirements)
        name = self._name(key, content, no_deps)
        path = self.root / name
        found = self._find(path)
        if found is not None:
            return found
        deadline = time.monotonic() + timeout_s
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self.root.chmod(0o755)
            with self._locked(name, deadline, on_line):
                found = self._find(path)  # built while this process waited
                if found is not None:
                    return found
                self._clear(name)
                return self._build(path, requirements, content, no_deps, on_line, deadline)
        except OSError as error:
            raise EnvironmentFailed(
                f"The environment for revision {key} could not be written below {self.root}: {error}. "
                "Let the agent's user write there, and see that the disk has space.",
                hint="Check owner, mode and free space of the agent's state directory.",
            ) from error

    def prune(self, keep: Collection[str] = (), unused_s: float = UNUSED_S) -> list[str]:
        """Remove environments whose name is not in `keep` and that no `ensure` asked for during `unused_s`.

        Gives the removed names. What killed builds left goes too. One that another process is building or removing
        right now is left alone.
        """
        removed = []
        left_over = {path.name[1:].split(".")[0] for path in self.root.glob(".*.partial")}
        unused = {
            marker.parent.name
            for marker in self.root.glob(f"*/{_MARKER}")
            if marker.parent.name not in keep and _unused(marker, unused_s)
        }
        for name in sorted(left_over | unused):
            try:
                with self._locked(name, 0.0, None):
                    self._clear(name)
                    if name in unused and self._take_away(self.root / name, unused_s):
                        removed.append(name)
            except EnvironmentFailed:
                continue  # somebody builds or removes it at this moment
        return removed

    def _take_away(self, path: Path, unused_s: float) -> bool:
        """Remove an environment, unless somebody asked for it a moment ago; True when it is gone by our doing."""
        partial = self._partial(path.name)
        try:
            path.rename(partial)
        except FileNotFoundError:
            return False
        if not _unused(partial / _MARKER, unused_s):
            # found between the look and the rename; from here on `ensure` sees none and waits for the lock
            partial.rename(path)
            return False
        shutil.rmtree(partial, ignore_errors=True)
        return True

    @cached_property
    def _interpreter(self) -> list[str]:
        """Version, implementation, platform and prefix of the base interpreter."""
        try:
            answer = subprocess.run(
                [self._python, "-I", "-c", _ASK], capture_output=True, text=True, timeout=60, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise EnvironmentFailed(
                f"The Python {self._python} does not run: {error}. Name one that does, version 3.11 or newer.",
                hint="Start the agent with a Python that runs, version 3.11 or newer.",
            ) from error
        return [str(part) for part in json.loads(answer.stdout)]

    def _name(self, key: str, content: bytes | None, no_deps: bool) -> str:
        parts = [*self._interpreter, "bare" if content is None else hashlib.sha256(content).hexdigest(), str(no_deps)]
        if content is not None and _leads_elsewhere(content):
            parts.append(key)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]

    def _find(self, path: Path) -> Environment | None:
        """Give a complete environment, and note that it is used; None when it, or its base interpreter, is gone."""
        python = path / "bin" / "python"
        try:
            os.utime(path / _MARKER)
        except FileNotFoundError:
            return None
        except PermissionError:
            # an environment of another user's agent: it may be used, but its last use stays unknown
            return Environment(python, path, 0.0) if python.exists() else None
        return Environment(python, path, 0.0) if python.exists() else None

    def _build(
        self,
        path: Path,
        requirements: Path | None,
        content: bytes | None,
        no_deps: bool,
        on_line: Callable[[str], None] | None,
        deadline: float,
    ) -> Environment:
        started = time.monotonic()
        partial = self._partial(path.name)
        try:
            installer.run(
                ["venv", "--relocatable", "--no-project", "--python", self._python, partial],
                cwd=self.root,
                timeout_s=deadline - time.monotonic(),
                what="No virtual environment could be made",
                on_line=None,
            )
            if requirements is not None and content is not None:
                installer.run(
                    [
                        *_install(content, no_deps),
                        "--python",
                        partial / "bin" / "python",
                        "-r",
                        requirements.absolute(),
                    ],
                    # uv reads relative names from where it runs, and settings in pyproject.toml too: only when needed
                    cwd=requirements.absolute().parent if _leads_elsewhere(content) else self.root,
                    timeout_s=deadline - time.monotonic(),
                    what=f"The packages of {requirements.name} could not be installed",
                    on_line=on_line,
                )
            built_s = time.monotonic() - started
            marker = {"python": self._interpreter[0], "no_deps": no_deps, "built_s": round(built_s, 3)}
            (partial / _MARKER).write_text(json.dumps(marker) + "\n")
            _open_to_readers(partial)
            self._take_away(path, 0.0)  # one that lost its base interpreter
            partial.rename(path)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return Environment(path / "bin" / "python", path, built_s)

    def _partial(self, name: str) -> Path:
        return self.root / f".{name}.{secrets.token_hex(4)}.partial"

    def _clear(self, name: str) -> None:
        """Remove what a holder of the lock left behind when it was killed."""
        for partial in self.root.glob(f".{name}.*.partial"):
            shutil.rmtree(partial, ignore_errors=True)

    @contextmanager
    def _locked(self, name: str, deadline: float, on_line: Callable[[str], None] | None) -> Iterator[None]:
        """Hold the lock of one environment. It ends with the process, so that a killed one blocks nobody."""
        descriptor = os.open(self.root / f".{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            waiting = False
            while not _try_lock(descriptor):
                if time.monotonic() >= deadline:
                    raise EnvironmentFailed(
                        f"Another process has been building the same environment ({name}) for too long. "
                        "Look into the log of that agent, or end it.",
                        hint="Look into the logs of the other agents on this host.",
                    )
                if not waiting and on_line is not None:
                    on_line("Another agent on this host builds the same environment; waiting for it ...")
                waiting = True
                time.sleep(_LOCK_POLL_S)
            yield
        finally:
            os.close(descriptor)


def _unused(marker: Path, unused_s: float) -> bool:
    """Whether nobody asked for an environment for so long; one without a marker is used by nobody."""
    try:
        return time.time() - marker.stat().st_mtime >= unused_s
    except FileNotFoundError:
        return True


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(requirements: Path | None) -> bytes | None:
    if requirements is None:
        return None
    try:
        return requirements.read_bytes()
    except OSError as error:
        raise EnvironmentFailed(
            f"The requirements file {requirements.name} cannot be read: {error.strerror}. "
            "Put it into the function's folder under the name that function.yaml gives, and deploy again.",
            hint="Compare `environment: {requirements: ...}` in function.yaml with the files beside it.",
            permanent=True,
        ) from error


def _leads_elsewhere(content: bytes) -> bool:
    """Whether requirements name files beside them: such an environment belongs to one revision."""
    return _LOCAL.search(content.decode(errors="replace")) is not None


def _install(content: bytes, no_deps: bool) -> list[str]:
    arguments = ["pip", "install"]
    if no_deps:
        arguments.append("--no-deps")
    if _HASHED.search(content.decode(errors="replace")):
        arguments.append("--require-hashes")
    return arguments


def _open_to_readers(folder: Path) -> None:
    """Let everybody read: files linked from a cache keep the mode that they got there, perhaps under a strict umask."""
    for place, _, files in os.walk(folder):
        os.chmod(place, 0o755)  # noqa: S103 - nothing in here is secret, and runners have another user
        for file in files:
            path = os.path.join(place, file)
            mode = os.lstat(path).st_mode
            if not os.path.islink(path) and mode & 0o444 != 0o444:
                os.chmod(path, mode & 0o777 | 0o444 | (0o111 if mode & 0o100 else 0))
