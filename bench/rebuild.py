"""How long a system needs until it is whole again after its Redis was emptied, and whether anything is done twice.

Beside a real system the bucket is filled with finished objects (input, commit, output, manifest) and open ones (input
only). Redis is emptied; what is measured is the time until every finished identity is settled, the function is back and
every open object is a job again. Then the open ones run, and every output is looked at.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import redis
from pydantic import SecretStr

from bench.system import System, running
from bench.table import Table
from tidemill.errors import LedgerUnavailable
from tidemill.ledger import connect
from tidemill.ledger.redis_ledger import RedisLedger
from tidemill.models import CommitOutput, CommitRecord, FunctionRecord, JobInput, JobState, object_job_id
from tidemill.record import Record
from tidemill.settings import StoreSettings
from tidemill.store import ObjectInfo, Store, open_store
from tidemill_placement.relisting import NEWEST

FUNCTION = Path(__file__).parent / "functions" / "nothing"
POOL: dict[str, Any] = {
    "name": "warm",
    "slots": 2,
    "price": {"usd_per_hour": 0.1},
    "agents": {"min": 0, "max": 1, "start": "2s"},
    "idle_timeout": "10m",
}
FINISHED, OPEN = 20_000, 2_000
WRITERS = 8
_PREFIX = "nothing/"
_RESULT = b'{"size": 1}'


def run(finished: int = FINISHED, open_objects: int = OPEN) -> Table:
    table = Table(f"Rebuild after FLUSHALL: {finished:,} finished and {open_objects:,} open objects")
    with running([POOL], [FUNCTION]) as system:
        store = _store(system)
        record, ledger = Record(store), connect(system.status["redis"])
        system.client().drain_pool("warm")  # nothing runs before Redis is emptied
        ids = _fill(store, record, ledger, finished, open_objects)
        done, waiting = ids[:finished], ids[finished:]
        before = _outputs(store)
        manifests = sum(1 for _ in record.manifests())

        with redis.Redis.from_url(system.status["redis"]) as server:
            server.flushall()
        began, emptied_at = time.monotonic(), time.time()
        ready_s = _until(began, lambda: _epoch(ledger) >= 2 and bool(ledger.functions()))
        whole_s = _until(began, lambda: all(ledger.known(waiting)) and all(ledger.known(done)))
        listed_s = _until(began, lambda: _listed(ledger) >= min(NEWEST, finished))
        system.client().resume_pool("warm")
        _until(began, lambda: sum(1 for _ in record.manifests()) >= manifests + open_objects, 600)
        table.add("ledger rebuilt, function back", ready_s, "s")
        table.add("and every open object a job again", whole_s, "s", most=60)
        table.add(f"and the newest {NEWEST:,} finished jobs in the lists", listed_s, "s")
        _judge(table, store, record, ledger, before, manifests, open_objects, emptied_at)
        ledger.close()
    table.notes.append("Real processes; Redis is emptied while the pool drains, which resumes when all is back.")
    return table


def _judge(
    table: Table,
    store: Store,
    record: Record,
    ledger: RedisLedger,
    before: dict[str, ObjectInfo],
    manifests: int,
    open_objects: int,
    emptied_at: float,
) -> None:
    after = _outputs(store)
    touched = sum(after.get(key) != info for key, info in before.items())
    again = sum(1 for _, _, generation in record.manifests() if generation > 1)
    new = sum(1 for _ in record.manifests()) - manifests
    jobs = ledger.jobs(since=emptied_at - 1, limit=100_000).jobs  # not those that are only listed again
    started = sum(1 for job in jobs if job.state is not JobState.cancelled)
    table.add("finished objects published a second time", touched + again, "objects", most=0)
    table.add("jobs started", started, "jobs", most=open_objects)
    table.add("open objects lost", open_objects - min(new, len(after) - len(before)), "objects", most=0)


def _fill(store: Store, record: Record, ledger: RedisLedger, finished: int, open_objects: int) -> list[str]:
    """Write all objects; give the identities, those of the finished ones first."""
    names = [f"{_PREFIX}{number:06d}" for number in range(finished + open_objects)]
    with ThreadPoolExecutor(WRITERS) as pool:
        _drain(pool.map(lambda name: store.put("inbox", name, b"x"), names))
        listed = {info.key: info for page in store.pages("inbox", _PREFIX) for info in page}
        function = ledger.functions()["nothing"]
        infos = [listed[name] for name in names]
        _drain(pool.map(lambda info: _finish(record, function, info), infos[:finished]))
    return [_identity(store, info) for info in infos]


def _drain(results: Iterable[object]) -> None:
    for _ in results:
        continue


def _identity(store: Store, info: ObjectInfo) -> str:
    return object_job_id("nothing", store.name, info.bucket, info.key, info.etag, info.size, info.last_modified)


def _finish(record: Record, function: FunctionRecord, info: ObjectInfo) -> None:
    """What a job leaves in the store."""
    job_id = _identity(record.store, info)
    output = CommitOutput(
        name="result.json",
        bucket="outbox",
        key=f"{info.key}/result.json",
        size=len(_RESULT),
        sha256=hashlib.sha256(_RESULT).hexdigest(),
        inline=base64.b64encode(_RESULT).decode(),
    )
    source = JobInput(bucket="inbox", key=info.key, etag=info.etag, size=info.size, last_modified=info.last_modified)
    commit = CommitRecord(
        job_id=job_id,
        function="nothing",
        revision=function.revision,
        generation=1,
        outcome="succeeded",
        nonce="0" * 16,
        epoch=1,
        attempt=1,
        input=source,
        outputs=(output,),
        created_at=float(info.last_modified),
        committed_at=time.time(),
    )
    record.commit(commit)
    record.publish(commit)


def _outputs(store: Store) -> dict[str, ObjectInfo]:
    return {info.key: info for page in store.pages("outbox", _PREFIX) for info in page}


def _store(system: System) -> Store:
    given = system.status["store"]
    return open_store(
        StoreSettings(
            endpoint=given["endpoint"],
            access_key=given["access_key"],
            secret_key=SecretStr(given["secret_key"]),
            region=given["region"],
        )
    )


def _listed(ledger: RedisLedger) -> int:
    return ledger.counts().get("nothing", {}).get(JobState.succeeded, 0)


def _epoch(ledger: RedisLedger) -> int:
    found = ledger.epoch()
    return found[0] if found is not None and found[1] > 0 else 0


def _until(began: float, condition: Callable[[], bool], limit_s: float = 300.0) -> float:
    """Seconds from `began` until the condition holds; a ledger without an epoch is one more reason to wait."""
    while time.monotonic() - began < limit_s:
        try:
            if condition():
                return time.monotonic() - began
        except LedgerUnavailable:
            time.sleep(0.05)
        time.sleep(0.05)
    raise RuntimeError(f"did not come true within {limit_s:.0f} s")
