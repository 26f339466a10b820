"""From a file's PUT to its visible result, one at a time, on an idle and warm system; and `client.run`."""

from __future__ import annotations

import io
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minio import Minio
from minio.error import S3Error

from bench.system import System, running
from bench.table import Table, quantile

FUNCTION = Path(__file__).parent / "functions" / "nothing"
POOL: dict[str, Any] = {
    "name": "warm",
    "slots": 1,
    "price": {"usd_per_hour": 0.1},
    "agents": {"min": 0, "max": 1, "start": "2s"},
    "idle_timeout": "10m",
}
FILES = 200
LISTED_FILES = 20
_BETWEEN_S = 0.001  # two looks
_ENOUGH = 5


def run() -> Table:
    table = Table("Latency, one job at a time, warm")
    with running([POOL], [FUNCTION]) as system:
        once(system.s3(), "warm-up", 60)
        seconds: list[float] = []
        for number in range(FILES):
            seconds.append(once(system.s3(), f"event-{number}", 20, seconds))
        table.add("PUT to result, webhook, p50", 1000 * quantile(seconds, 0.50), "ms", most=150)
        table.add("PUT to result, webhook, p99", 1000 * quantile(seconds, 0.99), "ms", most=500)
        _calls(system, table)
    with running([POOL], [FUNCTION], "--no-events") as system:
        once(system.s3(), "warm-up", 60)
        seconds = [once(system.s3(), f"listed-{number}", 20) for number in range(LISTED_FILES)]
        table.add("PUT to result, listing only, max", max(seconds), "s", most=2.5)
    table.notes.append(f"{FILES} files with the webhook, {LISTED_FILES} with listing only, {FILES} calls.")
    return table


def _calls(system: System, table: Table) -> None:
    client = system.client()
    client.run("nothing", b"warm-up", timeout=30)
    seconds = []
    for number in range(FILES):
        began = time.perf_counter()
        client.run("nothing", str(number).encode(), timeout=30)
        seconds.append(time.perf_counter() - began)
    table.add("client.run, tiny payload, p50", 1000 * quantile(seconds, 0.50), "ms", most=80)
    table.add("client.run, tiny payload, p99", 1000 * quantile(seconds, 0.99), "ms")


def once(s3: Minio, name: str, deadline_s: float, before: Sequence[float] = ()) -> float:
    """Seconds from the start of the PUT until a HEAD finds the result.

    A look takes 2 ms of CPU, of which the one who waits has half: five of them would lengthen what they measure. With
    the times `before` the first look comes at three quarters of their median, so that one or two are enough. It is
    spread over the time between two looks, whose grid would else show in the result.
    """
    began = time.perf_counter()
    s3.put_object("inbox", f"nothing/{name}", io.BytesIO(b"x" * 1000), 1000)
    if len(before) >= _ENOUGH:
        first_s = 0.75 * quantile(before[-50:], 0.5) + random.uniform(0, 2 * _BETWEEN_S)
        time.sleep(max(0.0, began + first_s - time.perf_counter()))
    while time.perf_counter() - began < deadline_s:
        try:
            s3.stat_object("outbox", f"nothing/{name}/result.json")
        except S3Error:
            time.sleep(_BETWEEN_S)
        else:
            return time.perf_counter() - began
    raise RuntimeError(f"no result of {name} after {deadline_s} s")
