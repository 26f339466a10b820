"""The peer in the fault lab: the same files and the same faults as Tidemill, as far as they mean something there.

A runner of the lab is a process of the peer's Celery worker here, an agent the worker itself, a gateway the receiver;
both are started again when they die. Calls of the API are files that are PUT. Connections through proxies, clocks and
failpoints have no counterpart, nor have placement and Flower.

It gets better conditions than most have: an event that meets no receiver is sent again for a minute (as a store with a
queue of its own does), and an unacknowledged message comes again after one minute instead of an hour. The judge looks
at buckets only, two minutes and more after the last fault.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.peers import marking
from tests.faults import schedule
from tests.faults.checker import FILES
from tests.faults.events import EventProxy
from tests.faults.injector import Injector
from tests.faults.lab import ALL, Choice, injector_undo
from tests.faults.load import IN, OUT, Entry, Load
from tests.faults.schedule import Drop, Fault
from tests.faults.servers import Redis, Server, Store
from tests.faults.system import LEASE_S
from tests.faults.toxiproxy import Toxiproxy
from tests.support.disk import Disk
from tidemill.errors import NotFound, ServiceUnavailable
from tidemill.local.ports import LOOPBACK, Reservation
from tidemill.local.ready import http_check
from tidemill.local.seaweed import Webhook
from tidemill.settings import StoreSettings
from tidemill.store import Store as Objects
from tidemill.store import open_store

SLOTS = 4
VISIBILITY_S = 60.0
ROOT = Path(__file__).parents[2]
_RESEND_S = 60.0
_CALM_S = 10.0
_START_S = 60.0
_MEANT = {
    "kill": ("runner", "agent", "gateway"),
    "pause": ("runner", "agent", "gateway", "redis", "store"),
    "redis": schedule.KINDS["redis"],
    "store": schedule.KINDS["store"],
    "events": schedule.KINDS["events"],
    "outage": schedule.KINDS["outage"],
}


@dataclass(frozen=True)
class Outcome:
    """What came of one seed. `again`: runs of the function beyond the first for one content of one input."""

    files: int
    faults: int
    lost: int
    doubled: int
    torn: int
    again: int


def faults(choice: Choice) -> list[Fault]:
    """The faults of this seed's plan that mean something to the peer."""
    plan = schedule.faults(choice.seed, ALL, choice.window_s, choice.gap_s, LEASE_S)
    return [fault for fault in plan if fault.what in _MEANT.get(fault.kind, ())]


def drops(choice: Choice) -> list[Drop]:
    """The files of this seed's plan, all of them PUT; only some are overwritten or deleted, none called again."""
    plan = schedule.drops(choice.seed, choice.jobs, choice.window_s * 0.9)
    kept = ("overwrite", "delete")
    return [dataclasses.replace(drop, way="put", twist=drop.twist if drop.twist in kept else "") for drop in plan]


def run(choice: Choice, tell: Callable[[str], None]) -> Outcome:
    """Do one seed. From the main thread."""
    folder = Path(tempfile.mkdtemp(prefix=f"tidemill-peer-{choice.seed}-"))
    peer = Peer(folder, choice.seed)
    try:
        peer.start()
        load = Load(peer.objects, [], "", drops(choice), choice.seed)
        injector = Injector(peer, faults(choice), tell)
        try:
            load.start()
            injector.run(choice.window_s)
            injector.mend()
            load.finish(60.0)
            _settle(peer, load.journal, choice.settle_s)
        finally:
            injector_undo(injector)
            load.stop()
        return _judge(peer, load.journal, len(injector.strikes))
    finally:
        peer.close()
        shutil.rmtree(folder, ignore_errors=True)


class Peer:
    """The receiver and the worker on the lab's own servers, with the face that `Injector` breaks."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rules = folder / "failpoints"
        self.proxy: Toxiproxy | None = None
        self.disks: dict[str, Disk] = {}
        self.marks = folder / "marks"
        self._ports = Reservation()
        for part in ("redis", "store", "receiver", "worker"):
            (folder / part).mkdir()
        token, access_key, secret_key = secrets.token_hex(16), "peer" + secrets.token_hex(8), secrets.token_hex(20)
        port = self._ports.take()
        self.events = Stubborn(self._ports.take(), f"http://{LOOPBACK}:{port}/hook", token, seed)
        self.redis = Redis(folder / "redis", self._ports, secrets.token_hex(16))
        self.store = Store(folder / "store", self._ports, access_key, secret_key, Webhook(self.events.url, token))
        seaweed = self.store.seaweed
        self.objects: Objects = open_store(
            StoreSettings(endpoint=seaweed.endpoint, access_key=access_key, secret_key=secret_key)
        )
        env = {
            "PYTHONPATH": str(ROOT),
            "PEER_REDIS": self.redis.url,
            "PEER_TOKEN": token,
            "PEER_STORE": f"{LOOPBACK}:{self.store.port}",
            "PEER_ACCESS_KEY": access_key,
            "PEER_SECRET_KEY": secret_key,
            "PEER_REGION": seaweed.region,
            "PEER_INBOX": IN,
            "PEER_OUTBOX": OUT,
            "PEER_FUNCTION": f"{marking.__name__}:{marking.run.__name__}",
            "PEER_MARKS": str(self.marks),
            "PEER_VISIBILITY_S": f"{VISIBILITY_S:g}",
        }
        server = ("uvicorn", "bench.peers.handmade:app", "--host", LOOPBACK, "--port", str(port), "--no-access-log")
        worker = ("celery", "-A", "bench.peers.handmade:tasks", "worker", f"--concurrency={SLOTS}", "-l", "WARNING")
        here, ready = [sys.executable, "-m"], http_check(port, "/openapi.json")
        self._receiver = Server("receiver", [*here, *server], env, folder / "receiver", ready)
        self._worker = Server("worker", [*here, *worker], env, folder / "worker", lambda: None)
        self._down = False

    def start(self) -> None:
        """Start everything, and wait until a file has come out."""
        self.redis.start()
        self.store.start()
        self.events.start()
        for bucket in (IN, OUT):
            self.objects.ensure_bucket(bucket)
        self._receiver.start()
        self._worker.start()
        self.objects.put(IN, "warm", json.dumps({"n": -1, "want": "small", "seconds": 0.0}).encode())
        give_up = time.monotonic() + _START_S
        while self.objects.head(OUT, "warm/result.json") is None:
            if time.monotonic() > give_up:
                raise RuntimeError("the peer did not start")
            time.sleep(0.1)

    def close(self) -> None:
        self.go_down()
        self.events.close()
        self.redis.kill()
        self.store.kill()
        self.store.seaweed.remove_sockets()
        self._ports.close()

    # -- what the injector asks for ------------------------------------------------------------------------------
    def pids(self, what: str) -> list[int]:
        """The processes of a kind."""
        servers: dict[str, Server] = {"redis": self.redis, "store": self.store, "gateway": self._receiver}
        pid = servers.get(what, self._worker).pid
        if pid is None:
            return []
        if what != "runner":
            return [pid]
        with contextlib.suppress(psutil.NoSuchProcess):
            return [child.pid for child in psutil.Process(pid).children()]
        return []

    def agent_names(self) -> dict[int, str]:
        return {}

    def revive(self) -> None:
        """What systemd does: start again what has ended."""
        if not self._down:
            self._receiver.begin()
            self._worker.begin()

    def go_down(self) -> None:
        self._down = True
        self._receiver.kill()
        self._worker.kill()

    def go_up(self) -> None:
        self._down = False
        self.revive()

    def wait_ready(self) -> None:
        self.go_up()
        self._receiver.start()


class Stubborn(EventProxy):
    """Sends what meets no receiver again for a minute."""

    def post(self, body: bytes) -> bool:
        give_up = time.monotonic() + _RESEND_S
        while not (taken := super().post(body)) and time.monotonic() < give_up and not self.closed.wait(0.5):
            continue
        return taken


def _settle(peer: Peer, journal: Sequence[Entry], settle_s: float) -> None:
    """Wait until all results are there or the time is over; at least until lost messages have come again."""
    began = time.monotonic()
    while (waited_s := time.monotonic() - began) < settle_s:
        if waited_s > VISIBILITY_S + _CALM_S:
            with contextlib.suppress(ServiceUnavailable):
                if not any(_result(peer.objects, entry) is None for entry in _wanted(journal)):
                    return
        peer.revive()
        time.sleep(0.5)


def _wanted(journal: Sequence[Entry]) -> list[Entry]:
    return [e for e in journal if e.accepted_at is not None and not e.deleted and e.drop.want != "fail"]


def _result(objects: Objects, entry: Entry) -> dict[str, str] | None:
    """The result of an input's last content, if there is one."""
    try:
        found: dict[str, str] = json.loads(objects.get(OUT, f"{entry.key}/result.json"))
    except NotFound:
        return None
    return found if found["input"] == entry.digest else None


def _judge(peer: Peer, journal: Sequence[Entry], struck: int) -> Outcome:
    found = [(entry, _result(peer.objects, entry)) for entry in _wanted(journal)]
    lost = sum(result is None for _, result in found)
    torn = sum(result is not None and not _whole(peer.objects, entry, result) for entry, result in found)
    once = [entry for entry in journal if entry.tries == 1 and not entry.deleted]
    counts = marking.runs(peer.marks)
    again = sum(max(0, counts[entry.digest] - 1) for entry in once)
    doubled = _doubled(peer.events.writes, {entry.key for entry in once})
    return Outcome(len(journal), struck, lost, doubled, torn, again)


def _whole(objects: Objects, entry: Entry, result: Mapping[str, str]) -> bool:
    """Whether all files beside a result are there, and of the run that wrote it."""
    nonce, names = result["nonce"].encode(), set()
    for page in objects.pages(OUT, f"{entry.key}/"):
        for info in page:
            name = info.key.rpartition("/")[2]
            names.add(name)
            if name != "result.json" and not objects.get(OUT, info.key).startswith(nonce):
                return False
    return names == FILES[entry.drop.want]


def _doubled(writes: Mapping[str, Sequence[tuple[float, str]]], once: set[str]) -> int:
    """Inputs, PUT once, of whose outputs one was seen with two contents."""
    found = set()
    for path, times in writes.items():
        key = path.removeprefix(f"/buckets/{OUT}/").rpartition("/")[0]
        if key in once and len({content for _, content in times}) > 1:
            found.add(key)
    return len(found)
