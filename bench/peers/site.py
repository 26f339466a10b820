"""Tidemill and the peer behind one face: the store, and which process is which."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
from minio import Minio

from bench.peers.handmade import INBOX, OUTBOX
from bench.system import TIDEMILL, running
from tests.support import run_valkey
from tests.support import servers as real
from tidemill.local.commands import status
from tidemill.local.ports import LOOPBACK, Reservation
from tidemill.local.ready import http_check
from tidemill.local.seaweed import Webhook

SLOTS = 2
FUNCTION = Path(__file__).parents[1] / "functions" / "nothing"
POOL: dict[str, Any] = {
    "name": "warm",
    "slots": SLOTS,
    "price": {"usd_per_hour": 0.1},
    "agents": {"min": 0, "max": 1, "start": "2s"},
    "idle_timeout": "10m",
}
WITHOUT_FLOWER = (sys.executable, "-m", "bench.peers.without_flower")
ROOT = Path(__file__).parents[2]


@dataclass
class Site:
    """A system that turns `inbox/nothing/X` into `outbox/nothing/X/result.json`. `pids` is asked anew when needed."""

    name: str
    s3: Minio
    redis_url: str
    pids: Callable[[], dict[str, int]]

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds so far of each part, with the processes that it started."""
        return {name: _cpu_s(psutil.Process(pid)) for name, pid in self.pids().items()}


@contextlib.contextmanager
def tidemill(*, flower: bool) -> Iterator[Site]:
    program = (*TIDEMILL, "up") if flower else WITHOUT_FLOWER
    with running([POOL], [FUNCTION], program=program) as system:

        def pids() -> dict[str, int]:
            processes = status(system.state_dir)["processes"]
            parts = {"gateway", "placement", "flower", "valkey", "seaweed"}
            return {p["name"] if p["name"] in parts else "agent and runners": p["pid"] for p in processes}

        yield Site("Tidemill", system.s3(), system.status["redis"], pids)


@contextlib.contextmanager
def handmade(*, flower: bool) -> Iterator[Site]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidemill-bench-")))
        for part in ("valkey", "seaweed", "receiver", "worker", "flower"):
            (folder / part).mkdir()
        ports = stack.enter_context(Reservation())
        port, token, pids = ports.take(), secrets.token_hex(16), {}
        valkey = stack.enter_context(run_valkey(folder / "valkey", persistent=True))
        hook = Webhook(f"http://{LOOPBACK}:{port}/hook", token)
        seaweed = stack.enter_context(real.run_seaweed(folder / "seaweed", webhook=hook))
        for bucket in (INBOX, OUTBOX):
            seaweed.create_bucket(bucket)
        address = urlsplit(seaweed.endpoint).netloc
        env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PEER_REDIS": valkey.url,
            "PEER_TOKEN": token,
            "PEER_STORE": address,
            "PEER_ACCESS_KEY": seaweed.access_key,
            "PEER_SECRET_KEY": seaweed.secret_key,
            "PEER_REGION": seaweed.region,
        }

        def start(part: str, check: Callable[[], None], *argv: str) -> None:
            command = [sys.executable, "-m", *argv]
            pids[part] = stack.enter_context(real.running(command, env, folder / part, check)).pid

        celery = ("celery", "-A", "bench.peers.handmade:tasks")
        server = ("uvicorn", "bench.peers.handmade:app", "--host", LOOPBACK, "--port", str(port), "--no-access-log")
        start("receiver", http_check(port, "/openapi.json"), *server)
        events = ("--task-events",) if flower else ()
        # It is ready when it does its first task, which the measurement waits for.
        start("worker", lambda: None, *celery, "worker", f"--concurrency={SLOTS}", "--loglevel=WARNING", *events)
        if flower:
            at = ports.take()
            start("flower", http_check(at, "/healthcheck"), *celery, "flower", f"--address={LOOPBACK}", f"--port={at}")
        for process in psutil.Process().children():
            name = process.name()
            if name in ("weed", "valkey-server"):
                pids["seaweed" if name == "weed" else "valkey"] = process.pid
        s3 = Minio(
            address, access_key=seaweed.access_key, secret_key=seaweed.secret_key, region=seaweed.region, secure=False
        )
        yield Site("peer", s3, valkey.url, lambda: pids)


def _cpu_s(process: psutil.Process) -> float:
    own = process.cpu_times()
    total = float(own.user + own.system)
    for child in process.children():
        with contextlib.suppress(psutil.NoSuchProcess):
            total += _cpu_s(child)
    return total
