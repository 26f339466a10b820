"""How fast the webhook answers at 500 events a second, beside a system that takes these events."""

from __future__ import annotations

import http.client
import io
import json
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from bench.system import System, running
from bench.table import Table, quantile

FUNCTION = Path(__file__).parent / "functions" / "nothing"
POOL: dict[str, Any] = {
    "name": "warm",
    "slots": 1,
    "price": {"usd_per_hour": 0.1},
    "agents": {"min": 0, "max": 1, "start": "2s"},
}
RATE = 500
SECONDS = 10
SENDERS = 8
OBJECTS = 200


def run() -> Table:
    table = Table(f"Webhook at {RATE} events a second")
    with running([POOL], [FUNCTION]) as system:
        for number in range(OBJECTS):
            system.s3().put_object("inbox", f"nothing/{number}", io.BytesIO(b"x" * 1000), 1000)
        _settle(system)
        # Every object is a job already, so each event costs what a doubled one does: a HEAD and a call of the ledger.
        before_s = _gateway_cpu_s(system)
        seconds = _storm(system)
        cpu_s = _gateway_cpu_s(system) - before_s
    rate = len(seconds.answers) / seconds.wall
    table.add("events a second, sent", rate, "/s", least=0.97 * RATE)
    table.add("answer, p50", 1000 * quantile(seconds.answers, 0.50), "ms")
    table.add("answer, p99", 1000 * quantile(seconds.answers, 0.99), "ms", most=50)
    table.add("answer, max", 1000 * max(seconds.answers), "ms")
    table.add("CPU of the gateway, an event (answer, HEAD, ledger)", 1000 * cpu_s / len(seconds.answers), "ms")
    table.notes.append(
        f"{SENDERS} connections, {SECONDS} s, events of {OBJECTS} objects that are jobs already; "
        "store, ledger, gateway and senders on the same cores."
    )
    return table


class _Storm:
    def __init__(self) -> None:
        self.answers: list[float] = []
        self.wall = 0.0


def _storm(system: System) -> _Storm:
    storm = _Storm()
    secret = json.loads((system.state_dir / "credentials.json").read_text())["hook_secret"]
    address = urlsplit(system.status["url"]).netloc
    began = time.monotonic()

    def send(sender: int) -> None:
        connection = http.client.HTTPConnection(address)
        times = []
        for number in range(sender, RATE * SECONDS, SENDERS):
            time.sleep(max(0.0, began + number / RATE - time.monotonic()))
            body = _body(number % OBJECTS)
            at = time.perf_counter()
            connection.request("POST", "/hooks/s3/local", body, {"Authorization": f"Bearer {secret}"})
            answer = connection.getresponse()
            answer.read()
            times.append(time.perf_counter() - at)
            if answer.status != 200:
                raise RuntimeError(f"the webhook answers {answer.status}")
        storm.answers += times

    threads = [threading.Thread(target=send, args=(number,)) for number in range(SENDERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    storm.wall = time.monotonic() - began
    return storm


def _gateway_cpu_s(system: System) -> float:
    [pid] = [process["pid"] for process in system.status["processes"] if process["name"] == "gateway"]
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def _body(number: int) -> bytes:
    """What SeaweedFS sends, without the fields that nobody reads."""
    entry = {"name": str(number), "attributes": {"file_size": 1000, "mtime": 1}}
    message = {"new_entry": entry, "new_parent_path": "/buckets/inbox/nothing"}
    return json.dumps({"event_type": "create", "key": f"/buckets/inbox/nothing/{number}", "message": message}).encode()


def _settle(system: System) -> None:
    client = system.client()
    deadline = time.monotonic() + 120
    while sum(1 for _ in client.jobs(state="succeeded")) < OBJECTS:
        if time.monotonic() > deadline:
            raise RuntimeError(f"not all of {OBJECTS} jobs were done")
        time.sleep(0.2)
