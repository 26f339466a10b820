"""What it costs to list a large bucket whose objects are all settled, and whose jobs the ledger forgot long ago.

Set `BENCH_OBJECTS` for another number of objects; to write a million takes half an hour.
"""

from __future__ import annotations

import os
import secrets
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import redis
from pydantic import SecretStr

from bench.table import Table
from tests.support import S3, run_seaweed, run_valkey
from tidemill.ledger import connect
from tidemill.ledger.redis_ledger import RedisLedger
from tidemill.models import FunctionRecord, FunctionSpec, object_job_id
from tidemill.record import Record
from tidemill.settings import GatewaySettings, IntakeSettings
from tidemill.store import open_store
from tidemill.store.s3 import S3Store
from tidemill_gateway.services import Services

OBJECTS = int(os.environ.get("BENCH_OBJECTS", "100000"))
ROUNDS = 3
WRITERS = 8
_SPEC = FunctionSpec.model_validate(
    {"name": "nothing", "handler": "w:f", "trigger": [{"bucket": "inbox", "prefix": "in/"}]}
)


def run(objects: int = OBJECTS) -> Table:
    table = Table(f"Reconciler over {objects:,} settled objects")
    with _servers() as (s3, url):
        store = open_store(s3.settings)
        ledger = connect(url)
        services = _services(store, ledger)
        _fill(store, objects)
        settled = ledger.settle(_ids(store))
        services.reconciler.round()  # the first one warms up, and knows how long it takes
        before = psutil.Process().memory_info().rss
        cpu, wall = [], []
        for _ in range(ROUNDS):
            cpu_at, at = time.thread_time(), time.monotonic()
            services.reconciler.round()
            cpu.append(time.thread_time() - cpu_at)
            wall.append(time.monotonic() - at)
        grown = psutil.Process().memory_info().rss - before
        enqueued = sum(sum(states.values()) for states in ledger.counts().values())
        with redis.Redis.from_url(url) as connection:
            memory = int(connection.info("memory")["used_memory"])
        per_object = statistics.median(cpu) / objects
        table.add("settled", settled, "objects", least=objects)
        table.add("enqueued", enqueued, "jobs", most=0)
        table.add("CPU per object", per_object * 1e6, "µs", most=30)
        table.add("one listing of all", statistics.median(wall), "s")
        table.add("memory grown over three listings", grown / 2**20, "MiB", most=8)
        table.add("the ledger's memory, all in all", memory / 2**20, "MiB")
        table.add("1,000,000 objects, extrapolated: CPU", per_object * 1e6, "s")
        table.add("... listed again after", min(86400.0, per_object * 1e6 / 0.02), "s")
        ledger.close()
    table.notes.append("SeaweedFS and Valkey on the same cores; CPU of the listing thread of the gateway alone.")
    return table


@contextmanager
def _servers() -> Iterator[tuple[S3, str]]:
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder:
        valkey, seaweed = Path(folder, "valkey"), Path(folder, "seaweed")
        valkey.mkdir()
        seaweed.mkdir()
        with run_valkey(valkey) as ledger, run_seaweed(seaweed) as store:
            yield S3(store.endpoint, store.access_key, store.secret_key, store.region), ledger.url


def _services(store: S3Store, ledger: RedisLedger) -> Services:
    ledger.begin_epoch(1, 0)
    record = Record(store)
    record.prepare()
    store.ensure_bucket("inbox")
    ledger.put_function(FunctionRecord(spec=_SPEC, revision="r", deployed_at=0.0, triggers_since=0.0))
    return Services(
        ledger=ledger,
        record=record,
        store=store,
        bell=lambda *_: "",
        gateway=GatewaySettings(token=SecretStr(secrets.token_hex(8))),
        intake=IntakeSettings(),
    )


def _fill(store: S3Store, objects: int) -> None:
    def write(first: int) -> None:
        for number in range(first, objects, WRITERS):
            store.put("inbox", f"in/{number // 1000:04}/{number:07}.txt", b"x")

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, range(WRITERS)))


def _ids(store: S3Store) -> Iterator[str]:
    for page in store.pages("inbox", "in/"):
        for info in page:
            yield object_job_id(_SPEC.name, store.name, info.bucket, info.key, info.etag, info.size, info.last_modified)
