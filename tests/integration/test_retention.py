"""Retention over a real Valkey and a real SeaweedFS: the same rules on listings, HEADs and deletions of a store."""

import hashlib
import time
from collections.abc import Iterator

import pytest
from pydantic import SecretStr

from tests.support import S3
from tidemill.ledger import connect
from tidemill.ledger.api import AgentReport, NewJob
from tidemill.ledger.redis_ledger import RedisLedger
from tidemill.models import (
    CommitOutput,
    FunctionRecord,
    FunctionSpec,
    JobInput,
    Placement,
    RequestRecord,
    object_job_id,
)
from tidemill.record import Record
from tidemill.record.ending import End, finish
from tidemill.settings import RetentionSettings, StoreSettings
from tidemill.store import open_store
from tidemill_placement.assembly import lifetimes
from tidemill_placement.rebuild import rebuild
from tidemill_placement.retention import Retention

DAY = 86_400.0
FUNCTION = FunctionRecord(spec=FunctionSpec(name="ocr", handler="m:f"), revision="r1", deployed_at=1, triggers_since=0)


@pytest.fixture
def record(s3: S3, bucket: str) -> Record:
    settings = StoreSettings(
        endpoint=s3.endpoint,
        access_key=s3.access_key,
        secret_key=SecretStr(s3.secret_key),
        region=s3.region,
        bucket=bucket,
    )
    found = Record(open_store(settings), bucket)
    found.prepare()
    found.put_function(FUNCTION)
    return found


@pytest.fixture
def inbox(record: Record) -> str:
    name = f"{record.bucket}-in"
    record.store.ensure_bucket(name)
    return name


@pytest.fixture
def ledger(redis_url: str) -> Iterator[RedisLedger]:
    found = connect(redis_url)
    found.begin_epoch(1, 1)
    found.heartbeat(AgentReport("p-a", "p", 4))
    yield found
    found.close()


def run(ledger: RedisLedger, record: Record, job_id: str, source: JobInput, outputs: bool = False) -> None:
    """A job's whole life, with a large output where it is asked for."""
    ledger.submit(NewJob(job_id, "ocr", source, "r1"))
    assert ledger.release(job_id, "p-a", Placement(pool="p"))
    (claim,) = ledger.claim("p-a", 1, 60.0)
    files = []
    if outputs:
        key = record.attempt_prefix(claim.token) + "big"
        record.store.put(record.bucket, key, b"large")
        digest = hashlib.sha256(b"large").hexdigest()
        files.append(
            CommitOutput(name="big", bucket=source.bucket, key="out/big", size=5, sha256=digest, attempt_key=key)
        )
    record.put_log("ocr", job_id, 1, b"a line")
    finish(ledger, record, claim, FUNCTION, End("succeeded", outputs=tuple(files)))


def left(record: Record) -> dict[str, int]:
    """How many objects there are of each kind."""
    found: dict[str, int] = {}
    for page in record.store.pages(record.bucket):
        for info in page:
            kind = info.key.split("/")[0]
            found[kind] = found.get(kind, 0) + 1
    return found


def tidy(ledger: RedisLedger, record: Record, days: float) -> None:
    """All passes, at a time that is so many days from now."""
    now = time.time() + days * DAY
    retention = Retention(ledger, record, lifetimes(RetentionSettings()), clock=lambda: now, ledger_clock=lambda: now)
    while retention.turn() < 30:
        now += 0.1


def test_what_a_real_store_holds_goes_in_its_time_and_nothing_runs_again(
    ledger: RedisLedger, record: Record, inbox: str
) -> None:
    names = ("listed.png", "gone.png")
    ids: list[str] = []
    for name in names:
        record.store.put(inbox, name, b"scan")
        info = record.store.head(inbox, name)
        assert info is not None
        ids.append(object_job_id("ocr", "local", inbox, name, info.etag, info.size, info.last_modified))
        source = JobInput(bucket=inbox, key=name, etag=info.etag, size=info.size, last_modified=info.last_modified)
        run(ledger, record, ids[-1], source, outputs=name == "gone.png")
    calls = ["c" * 32, "d" * 32]
    for job_id in calls:
        key = record.payload_key(job_id, "a b+ü.png")
        etag = record.store.put(record.bucket, key, b"payload")
        source = JobInput(bucket=record.bucket, key=key, etag=etag, size=7, name="a.png")
        record.put_request(RequestRecord(job_id=job_id, function="ocr", input=source, created_at=1.0))
    run(ledger, record, calls[0], source.model_copy(update={"key": record.payload_key(calls[0], "a b+ü.png")}))
    record.store.delete(inbox, "gone.png")

    everything = left(record)
    tidy(ledger, record, 0.0)
    assert left(record) == everything
    tidy(ledger, record, 1.0)
    assert left(record) == {kind: number for kind, number in everything.items() if kind != "attempts"}
    tidy(ledger, record, 8.0)
    assert (left(record)["requests"], left(record)["payloads"]) == (1, 1), "those of the open call"
    assert ledger.job(ids[0]) is None and all(ledger.known([*ids, calls[0]]))
    tidy(ledger, record, 91.0)
    found = left(record)
    assert (found["manifests"], found["commits"]) == (1, 1), "that of the input which is still listed"
    assert "logs" not in found
    assert ledger.known([*ids, *calls]) == [True, False, False, False]

    ledger._connection.calls.flushdb()
    assert ledger.begin_epoch(2, 0)
    rebuilt = rebuild(ledger, record)
    assert (rebuilt.settled, rebuilt.published, rebuilt.queued) == (1, 0, 1), "only the open call is to be run"
    assert record.store.get(inbox, "out/big") == b"large"
