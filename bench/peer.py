"""Tidemill beside what a good engineer writes by hand today (`bench/peers/handmade.py`): throughput and latency.

Both run a function that does nothing, in two processes, on a Valkey and a SeaweedFS of their own with the same
settings; first without Flower, then with it. Latency is measured on both in turns, a few files each, so that a machine
that is slower for a while is slower for both. Set `BENCH_FILES` for another number of files, `BENCH_FLOWER=0` to leave
out the half with Flower.
"""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from bench.latency import once
from bench.peers.site import SLOTS, Site, handmade, tidemill
from bench.table import Table, quantile
from tidemill.ledger import connect

FILES = int(os.environ.get("BENCH_FILES", "2000"))
WITH_FLOWER = os.environ.get("BENCH_FLOWER", "1") != "0"
WRITERS = 8
SINGLES = 300
_TURN = 10  # files of one system, then as many of the other
SIZE_BYTES = 10_000
_WARM = 40
_LIMIT_S = 600.0


@dataclass
class Result:
    """What one system did. `cpu_ms`: milliseconds of CPU for each job, by part."""

    jobs_per_s: float
    cpu_ms: dict[str, float]


def run(files: int = FILES) -> Table:
    table = Table(f"Tidemill beside a webhook receiver and Celery written by hand: {files:,} files, {WRITERS} writers")
    for flower, least in ((False, 0.6), (True, 0.75))[: 2 if WITH_FLOWER else 1]:
        said = "Flower on" if flower else "Flower off"
        peer = _measure(handmade, files, flower=flower)
        ours = _measure(tidemill, files, flower=flower)
        table.add(f"{said}: peer", peer.jobs_per_s, "jobs/s")
        table.add(f"{said}: Tidemill", ours.jobs_per_s, "jobs/s")
        table.add(f"{said}: share of the peer's", ours.jobs_per_s / peer.jobs_per_s, "", least=least)
        for name, result in (("peer", peer), ("Tidemill", ours)):
            table.add(f"... CPU a job, {name}: all", sum(result.cpu_ms.values()), "ms")
            for part, cpu_ms in sorted(result.cpu_ms.items(), key=lambda item: -item[1]):
                table.add(f"...    {part}", cpu_ms, "ms")
        if not flower:
            _latency(table)
    table.notes.append(
        f"Files of {SIZE_BYTES:,} bytes, {SLOTS} processes for functions; {SINGLES} files one at a time. Latency is "
        f"compared without Flower, in turns of {_TURN} files. First PUT to last visible result."
    )
    return table


def _latency(table: Table) -> None:
    taken_s: dict[str, list[float]] = {}
    starts: dict[str, float] = {}
    with handmade(flower=False) as peer, tidemill(flower=False) as ours:
        for site in (peer, ours):
            _storm(site, "warm", _WARM)
            once(site.s3, "warm-up", 60)
        for number in range(0, SINGLES, _TURN):
            for site in (peer, ours):
                for name in (f"one-{number + turn}" for turn in range(_TURN)):
                    starts[name] = time.time()  # in the end those of our own
                    before = taken_s.setdefault(site.name, [])
                    before.append(once(site.s3, name, 60, before))
        steps_ms = _steps(ours.redis_url, starts)
    peer_ms, ours_ms = (1000 * quantile(taken_s[site.name], 0.5) for site in (peer, ours))
    table.add("one at a time, p50: peer", peer_ms, "ms")
    table.add("one at a time, p50: Tidemill", ours_ms, "ms")
    table.add("one at a time, p50: times the peer's", ours_ms / peer_ms, "", most=1.3)
    for step, took_ms in steps_ms.items():
        table.add(f"...    {step}", took_ms, "ms")


def _measure(start: Callable[..., AbstractContextManager[Site]], files: int, *, flower: bool) -> Result:
    with start(flower=flower) as site:
        _storm(site, "warm", _WARM)
        once(site.s3, "warm-up", 60)
        before = site.cpu_s()
        seconds = _storm(site, "storm", files)
        after = site.cpu_s()
        cpu_ms = {part: 1000 * (spent - before.get(part, 0.0)) / files for part, spent in after.items()}
        result = Result(files / seconds, cpu_ms)
        print(f"  {site.name}, Flower {'on' if flower else 'off'}: {result.jobs_per_s:.0f} jobs/s", flush=True)
        return result


def _storm(site: Site, name: str, files: int) -> float:
    """PUT so many files at once; seconds until the last result is there."""
    prefix, body = f"nothing/{name}/", b"x" * SIZE_BYTES
    failed: list[Exception] = []

    def write(first: int) -> None:
        try:
            for number in range(first, files, WRITERS):
                site.s3.put_object("inbox", f"{prefix}{number:06}", io.BytesIO(body), len(body))
        except Exception as error:  # noqa: BLE001 - told by the thread that waits
            failed.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    while (done := sum(1 for _ in site.s3.list_objects("outbox", prefix, recursive=True))) < files:
        spent = time.monotonic() - began
        if spent > _LIMIT_S:
            raise RuntimeError(f"{site.name}: {done} of {files} results after {spent:.0f} s")
        # Looking costs both systems time: seldom at first, often near the end.
        time.sleep(min(1.0, max(0.05, 0.3 * spent * (files - done) / max(1, done))))
    return time.monotonic() - began


def _steps(redis_url: str, starts: dict[str, float]) -> dict[str, float]:
    """Median milliseconds of each step of the jobs about these objects, from the ledger's own times."""
    ledger = connect(redis_url)
    names: dict[str, str] = {}
    times: dict[str, dict[str, float]] = {}
    position = "0"
    while lines := ledger.transitions(position):
        position = lines[-1].position
        for line in lines:
            if line.summary:
                names[line.job_id] = line.summary.rsplit("/", 1)[-1]
            times.setdefault(line.job_id, {})[line.state.value] = line.at
    ledger.close()
    found = [{"PUT": starts[name], **times[job_id]} for job_id, name in names.items() if name in starts]
    steps = {
        "PUT, webhook, HEAD, until accepted": ("PUT", "queued"),
        "until released to an agent": ("queued", "released"),
        "until claimed": ("released", "running"),
        "fetch, run, HEAD, commit, output, manifest": ("running", "succeeded"),
    }
    medians = {}
    for step, (first, last) in steps.items():
        taken = [job[last] - job[first] for job in found if first in job and last in job]
        if taken:
            medians[step] = 1000 * quantile(taken, 0.5)
    return medians
