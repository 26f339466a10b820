"""The ledger alone: memory, whether it slows down when much is queued, and the script calls that a job costs.

Set `BENCH_QUEUED` for another number of queued jobs (1,000,000 takes some minutes).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, cast

import redis

from bench.latency import FUNCTION, POOL, once
from bench.system import running
from bench.table import Table
from tests.support import servers as real
from tidemill.ledger import connect
from tidemill.ledger.api import AgentReport, NewJob, Submitted
from tidemill.ledger.connection import Connection
from tidemill.ledger.redis_ledger import RedisLedger
from tidemill.ledger.scripting import names, script
from tidemill.local.ports import Reservation
from tidemill.local.valkey import Valkey
from tidemill.models import JobInput, Placement, object_job_id

QUEUED = int(os.environ.get("BENCH_QUEUED", "200000"))
FEW = 1000
SETTLED = 1_000_000
CALLS = 1000
JOBS = 100
_AGENT = "gpu-000001"
_PREFIX = "tm:"
_BATCH = 500
_PLACEMENT = Placement(pool="gpu", reason="it is idle and has the model loaded (0.3 s)")
# What happens at all times, jobs or not, or once for many of them.
_AROUND = frozenset({"acquire", "agents", "backlog", "counts", "expire", "heartbeat", "note_ignored", "sweep"})


def run(queued: int = QUEUED) -> Table:
    table = Table(f"The ledger with {queued:,} queued jobs")
    with _server() as few_url, _server() as many_url:
        few, many = connect(few_url), connect(many_url)
        with redis.Redis.from_url(many_url) as server:
            for ledger, url, count in ((few, few_url, FEW), (many, many_url, FEW)):
                ledger.begin_epoch(1, 1)
                ledger.heartbeat(AgentReport(_AGENT, "gpu", 4))
                _fill(url, 0, count)
            before = _used(server)
            _fill(many_url, FEW, queued)
            table.add("memory of a queued job", (_used(server) - before) / (queued - FEW), "bytes", most=1500)
            for name, (few_us, many_us) in _calls(few, many).items():
                table.add(f"{name}, p50, {FEW:,} queued", few_us, "µs")
                table.add(f"{name}, p50, {queued:,} queued", many_us, "µs")
                table.add(f"{name}, p50, ratio", many_us / few_us, "", most=1.5)
            before = _used(server)
            many.settle(secrets.token_hex(16) for _ in range(SETTLED))
            table.add(
                f"memory of a settled identity, of {SETTLED:,}", (_used(server) - before) / SETTLED, "bytes", most=12
            )
        few.close()
        many.close()
    _scripts(table)
    table.notes.append(
        f"Memory is Redis' `used_memory`, the stream of transitions and all indices in it. {CALLS} calls of each kind, "
        f"in turn on a server with {FEW:,} and one with {queued:,} jobs. Script calls: MONITOR of a whole system "
        f"with {JOBS} jobs one at a time."
    )
    return table


# -- memory and time -----------------------------------------------------------------------------------------------
@contextlib.contextmanager
def _server() -> Iterator[str]:
    """A Valkey with the settings of the embedded one, but room for a million jobs."""
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder, Reservation() as ports:
        server = Valkey(Path(folder), ports.take(), secrets.token_hex(16), maxmemory_bytes=4 * 2**30, persistent=False)
        server.prepare()
        with real.running(server.argv(), {}, server.directory, server.check_ready):
            yield server.url


def _used(server: redis.Redis) -> int:
    return int(server.info("memory")["used_memory"])


def _job(number: int) -> NewJob:
    key = f"scans/2026/batch-{number // 1000:04}/page-{number:07}.png"
    given = JobInput(bucket="inbox", key=key, etag=f"{number:032x}", size=123_456, last_modified=1_700_000_000)
    job_id = object_job_id("ocr", "local", given.bucket, key, given.etag, given.size, given.last_modified)
    return NewJob(job_id, "ocr", given, "abcdef012345")


class _Piped:
    """Stands in for a connection of the ledger: calls are sent in groups, and nobody waits for a reply."""

    def __init__(self, server: redis.Redis) -> None:
        self._pipe = server.pipeline(transaction=False)
        self._waiting = 0

    def run(self, name: str, *args: Any) -> tuple[int, str, int, str, int]:
        self._pipe.evalsha(script(name).sha, 1, _PREFIX, *args)
        self._waiting += 1
        if self._waiting == _BATCH:
            self.flush()
        return 1, "queued", 1, "", 0

    def flush(self) -> None:
        self._pipe.execute()
        self._waiting = 0


def _fill(url: str, first: int, end: int) -> None:
    with redis.Redis.from_url(url) as server:
        server.script_load(script("submit").text)
        piped = _Piped(server)
        ledger = RedisLedger(cast(Connection, piped))
        for number in range(first, end):
            ledger.submit(_job(number))
        piped.flush()


def _calls(few: RedisLedger, many: RedisLedger) -> dict[str, tuple[float, float]]:
    """Median microseconds of each call on both, measured in turn so that noise meets both."""
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in ("submit", "release", "claim")}
    for number in range(CALLS):
        new, oldest = _job(10_000_000 + number), _job(number)
        for which, ledger in enumerate((few, many)):
            calls: dict[str, Callable[[], object]] = {
                "submit": partial(ledger.submit, new),
                "release": partial(ledger.release, oldest.id, _AGENT, _PLACEMENT),
                "claim": partial(ledger.claim, _AGENT, 1, 600.0),
            }
            for name, call in calls.items():
                at = time.perf_counter()
                done = call()
                times[name][which].append((time.perf_counter() - at) * 1e6)
                if not done or (isinstance(done, Submitted) and not done.created):
                    raise RuntimeError(f"{name} refused")
    return {name: (median(of_few), median(of_many)) for name, (of_few, of_many) in times.items()}


# -- script calls --------------------------------------------------------------------------------------------------
def _scripts(table: Table) -> None:
    with running([POOL], [FUNCTION]) as system:
        once(system.s3(), "warm-up", 60)
        with _Monitor(system.status["redis"]) as monitor:
            for number in range(JOBS):
                once(system.s3(), f"counted-{number}", 30)
            monitor.until(lambda counts: counts["published"] >= JOBS)
            counts = monitor.counts()
    way = {name: count / JOBS for name, count in counts.items() if name not in _AROUND}
    table.add("script calls from submit to succeeded, a job", sum(way.values()), "", most=8)
    for name, share in sorted(way.items(), key=lambda item: -item[1]):
        table.add(f"...    {name}", share, "")
    table.add("other script calls meanwhile, a job", sum(counts.values()) / JOBS - sum(way.values()), "")
    rest = {name: count / JOBS for name, count in counts.items() if name in _AROUND}
    for name, share in sorted(rest.items(), key=lambda item: -item[1]):
        table.add(f"...    {name}", share, "")


class _Monitor:
    """Counts the scripts that a server is asked for, by name, while the block runs."""

    def __init__(self, url: str) -> None:
        self._server = redis.Redis.from_url(url)
        self._names = {script(name).sha: name for name in names()}
        self._counts: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._listening = threading.Event()

    def __enter__(self) -> _Monitor:
        self._thread.start()
        self._listening.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(10)  # a heartbeat or the leader's lease wakes it
        self._server.close()

    def _listen(self) -> None:
        with self._server.monitor() as monitor:  # type: ignore[no-untyped-call]
            self._listening.set()
            while not self._ended.is_set():
                said = monitor.next_command()
                words = said["command"].split(" ", 2)
                if said["client_type"] != "lua" and words[0].upper() == "EVALSHA" and words[1] in self._names:
                    with self._changed:
                        self._counts[self._names[words[1]]] += 1
                        self._changed.notify_all()

    def until(self, condition: Callable[[Counter[str]], bool], limit_s: float = 30.0) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self._counts), limit_s):
                raise RuntimeError(f"not within {limit_s:.0f} s: {dict(self._counts)}")

    def counts(self) -> dict[str, int]:
        with self._changed:
            return dict(self._counts)
