"""Redis and the store of a run: started, killed, paused, emptied, put back to an older copy, and filled.

They are the lab's own and not `tidemill up`'s, so that proxies fit between, and an older copy between two starts.
All methods are for the main thread: a server dies with the thread that started it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import redis

from tidemill.local.ports import Reservation
from tidemill.local.ready import wait_ready
from tidemill.local.seaweed import Ports, Seaweed, Webhook
from tidemill.local.spawn import spawn
from tidemill.local.valkey import Valkey

MAXMEMORY_BYTES = 64 * 2**20
_START_S = 60.0


class Server:
    """One server process that may be killed and started again."""

    def __init__(
        self, name: str, argv: list[str], env: Mapping[str, str], folder: Path, ready: Callable[[], None]
    ) -> None:
        self.name = name
        self.folder = folder
        self._argv = argv
        self._env = {"PATH": os.environ["PATH"], **env}
        self._ready = ready
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Start it, unless it runs, and wait until it answers."""
        self.begin()
        wait_ready(self._ready, _START_S, alive=lambda: self.pid is not None)

    def begin(self) -> None:
        """Start it, unless it runs, and do not wait."""
        if self.pid is None:
            with (self.folder / "log").open("ab") as output:
                self._process = spawn(self._argv, env=self._env, cwd=self.folder, output=output)

    def kill(self) -> None:
        if (pid := self.pid) is not None and self._process is not None:
            os.killpg(pid, signal.SIGKILL)
            self._process.wait()


class Redis(Server):
    """Valkey with its AOF, as `tidemill up` starts it, with less memory."""

    def __init__(self, folder: Path, ports: Reservation, password: str) -> None:
        valkey = Valkey(folder, ports.take(), password, maxmemory_bytes=MAXMEMORY_BYTES)
        valkey.prepare()
        super().__init__("redis", valkey.argv(), {}, folder, valkey.check_ready)
        self.port = valkey.port
        self.url = valkey.url
        self._valkey = valkey
        self._copies: list[tuple[float, Path]] = []
        self._client = redis.Redis.from_url(valkey.url, socket_timeout=5)

    def begin(self) -> None:
        if self.pid is None:
            self._valkey.before_start()
        super().begin()

    def flush(self) -> None:
        self._client.flushall()

    def kick(self) -> None:
        """Close every client's connection."""
        for kind in ("pubsub", "normal"):
            with contextlib.suppress(redis.ConnectionError):
                self._client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")

    def fill(self, share: float) -> None:
        """Use up this share of its memory; 1: all of it."""
        info = self._client.info("memory")
        missing = int(share * MAXMEMORY_BYTES) - info["used_memory"]
        piece = 256 * 1024
        with contextlib.suppress(redis.exceptions.OutOfMemoryError):
            for number in range(max(0, missing) // piece + (3 if share >= 1 else 0)):
                self._client.set(f"ballast:{number}", b"x" * piece)

    def unfill(self) -> None:
        for key in self._client.scan_iter("ballast:*", count=1000):
            self._client.delete(key)

    def copy(self) -> None:
        """Keep a copy of what is on disk now; a torn end of the log is what a snapshot would have, too."""
        target = self.folder.parent / f"redis-copy-{len(self._copies)}"
        with contextlib.suppress(FileNotFoundError):  # a file of the log was rewritten meanwhile: take the next copy
            shutil.copytree(self.folder / "appendonlydir", target, dirs_exist_ok=True)
            self._copies.append((time.monotonic(), target))

    def restore(self, age_s: float) -> float | None:
        """Kill it and put the copy of about that age in place (without starting). Gives the real age in seconds."""
        wanted = time.monotonic() - age_s
        if not self._copies:
            return None
        self.kill()
        taken, copy = min(self._copies, key=lambda entry: abs(entry[0] - wanted))
        shutil.rmtree(self.folder / "appendonlydir")
        shutil.copytree(copy, self.folder / "appendonlydir")
        return time.monotonic() - taken


class Store(Server):
    """SeaweedFS as `tidemill up` starts it, its events sent to the lab's proxy."""

    def __init__(self, folder: Path, ports: Reservation, access_key: str, secret_key: str, webhook: Webhook) -> None:
        self.seaweed = Seaweed(folder, Ports.take(ports), access_key, secret_key, webhook)
        self.seaweed.prepare()
        super().__init__("store", self.seaweed.argv(), self.seaweed.env(), folder, self.seaweed.check_ready)
        self.port = self.seaweed.ports.s3

    def begin(self) -> None:
        if self.pid is None:
            self.seaweed.before_start()
        super().begin()
