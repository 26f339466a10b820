"""Real servers for tests, started once per run. One that cannot start fails the run."""

import contextlib
import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from tidemill.local.ports import Reservation
from tidemill.local.ready import NotReady, wait_ready
from tidemill.local.seaweed import Ports, Seaweed, Webhook
from tidemill.local.spawn import spawn
from tidemill.local.valkey import Valkey
from tidemill.settings import StoreSettings

_START_S = 30.0


@dataclass(frozen=True)
class S3:
    """A store and the key to it."""

    endpoint: str
    access_key: str
    secret_key: str
    region: str

    @property
    def settings(self) -> StoreSettings:
        """The same, as our own settings."""
        return StoreSettings(
            endpoint=self.endpoint,
            access_key=self.access_key,
            secret_key=SecretStr(self.secret_key),
            region=self.region,
        )


@contextlib.contextmanager
def run_valkey(directory: Path, *, persistent: bool = False) -> Iterator[Valkey]:
    """A Valkey while the block runs."""
    with Reservation() as ports:
        server = Valkey(directory, ports.take(), password=secrets.token_hex(16), persistent=persistent)
        server.prepare()
        with running(server.argv(), {}, directory, server.check_ready):
            yield server


@contextlib.contextmanager
def run_seaweed(directory: Path, *, webhook: Webhook | None = None) -> Iterator[Seaweed]:
    """A SeaweedFS while the block runs."""
    with Reservation() as ports:
        server = Seaweed(directory, Ports.take(ports), "test" + secrets.token_hex(8), secrets.token_hex(20), webhook)
        server.prepare()
        with running(server.argv(), server.env(), directory, server.check_ready):
            yield server
        server.remove_sockets()


@contextlib.contextmanager
def running(
    argv: list[str], env: Mapping[str, str], directory: Path, check: Callable[[], None]
) -> Iterator["subprocess.Popen[bytes]"]:
    """A server while the block runs: ready when `check` no longer raises `NotReady`, killed at the end."""
    log = directory / "log"
    with log.open("wb") as output:
        process = spawn(argv, env={"PATH": os.environ["PATH"], **env}, cwd=directory, output=output)
    try:
        try:
            wait_ready(check, _START_S, alive=lambda: process.poll() is None)
        except NotReady as error:
            tail = log.read_bytes()[-2000:].decode("utf-8", "replace")
            raise RuntimeError(f"{argv[0]} did not start: {error}\n{tail}") from error
        yield process
    finally:
        # Nobody needs what is in there, and a polite end takes SeaweedFS over two seconds.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
