"""Servers that are no wheels: built once with Go, kept by version outside the checkout, and only ever run beside ours.

    python tests/support/tools.py [NAME ...]        build what is missing (all of them without a name)

`make test` does that first. Where there is no Go (MinIO wants 1.24 or newer; Debian 12 brings an older one), nothing is
built, the tests that need the server say so as they are skipped, and with `CI=true` they fail.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Tool:
    """A program of a Go module at one version, and the oldest Go that can build it."""

    name: str
    package: str
    version: str
    go: tuple[int, int]
    minutes: str

    @property
    def folder(self) -> Path:
        return cache() / f"{self.name}-{self.version}"

    @property
    def path(self) -> Path:
        """Where the program lies once it is built."""
        return self.folder / self.name


# The last public source of MinIO; its own tags are no versions that Go takes.
MINIO = Tool("minio", "github.com/minio/minio", "v0.0.0-20260212201848-7aac2a2c5b7c", (1, 24), "about 3 minutes")
TOOLS: Mapping[str, Tool] = {tool.name: tool for tool in (MINIO,)}


class ToolMissing(Exception):
    """The program is not built and cannot be: the text says what is lacking."""


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tidemill" / "tools"


def find(tool: Tool) -> Path:
    """The built program. Raises `ToolMissing`, also where it could be built: that takes minutes, and is `make`'s."""
    if not tool.path.is_file():
        raise ToolMissing(f"{tool.name} is not built; with Go {_dotted(tool.go)} or newer `make test` builds it")
    return tool.path


def build(tool: Tool) -> Path:
    """The program, built first when it is missing. Two builds at once wait for each other.

    Raises:
        ToolMissing: there is no Go, or an older one.
        CalledProcessError: Go failed, after it said why.
    """
    if tool.path.is_file():
        return tool.path
    _check_go(tool)
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / f"{tool.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not tool.path.is_file():
            print(f"Building {tool.name} {tool.version} with Go ({tool.minutes}, once) ...", flush=True)
            # In a folder beside it, then renamed: nobody finds half a program.
            with tempfile.TemporaryDirectory(prefix=f".{tool.name}-", dir=cache()) as scratch:
                made = Path(scratch, "made")
                made.mkdir()
                command = ["nice", "-n", "10", "go", "install", f"{tool.package}@{tool.version}"]
                subprocess.run(command, env={**os.environ, "GOBIN": str(made)}, cwd=scratch, check=True)
                shutil.rmtree(tool.folder, ignore_errors=True)
                made.rename(tool.folder)
    return tool.path


def _check_go(tool: Tool) -> None:
    wanted = _dotted(tool.go)
    try:
        said = subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        raise ToolMissing(f"{tool.name} needs Go {wanted} or newer to be built, and there is none") from error
    found = re.match(r"go(\d+)\.(\d+)", said)
    if found is not None and (int(found[1]), int(found[2])) < tool.go:
        raise ToolMissing(f"{tool.name} needs Go {wanted} or newer to be built, and this one is {said}")


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def main(names: list[str]) -> int:
    if unknown := set(names) - set(TOOLS):
        print(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(TOOLS)}", file=sys.stderr)
        return 2
    for name in names or TOOLS:
        try:
            build(TOOLS[name])
        except ToolMissing as missing:
            print(f"{missing}: the tests that need it are skipped", file=sys.stderr)
            if os.environ.get("CI"):
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
