"""One record that cannot be read stops no rebuild: everything else comes back, and the damage is told."""

import pytest

from tidemill.models import CommitRecord, FunctionRecord, FunctionSpec, JobInput, PoolSpec, RequestRecord
from tidemill.record import Record, keys
from tidemill.testing import MemoryLedger, MemoryStore
from tidemill_placement.forgotten import finish_forgotten
from tidemill_placement.rebuild import rebuild

SOURCE = JobInput(bucket="inbox", key="a.png", etag="e", size=3, last_modified=1)
DAMAGED, GOOD = f"{1:032x}", f"{2:032x}"


def function(name: str) -> FunctionRecord:
    spec = FunctionSpec(name=name, handler="m:f")
    return FunctionRecord(spec=spec, revision="r1", deployed_at=1, triggers_since=0)


def request(job_id: str, name: str = "ocr") -> RequestRecord:
    return RequestRecord(job_id=job_id, function=name, input=SOURCE, created_at=1)


def commit(job_id: str) -> CommitRecord:
    return CommitRecord(
        job_id=job_id,
        function="ocr",
        revision="r1",
        generation=1,
        outcome="failed",
        nonce="n",
        epoch=1,
        attempt=1,
        input=SOURCE,
        created_at=1,
        committed_at=2,
    )


@pytest.fixture
def record() -> Record:
    found = Record(MemoryStore(), "tidemill")
    found.prepare()
    found.put_function(function("ocr"))
    found.put_pool(PoolSpec(name="p"))
    return found


@pytest.fixture
def ledger() -> MemoryLedger:
    found = MemoryLedger()
    found.begin_epoch(2, 0)
    return found


def tear(record: Record, key: str) -> str:
    """Cut a record off in its middle."""
    body = record.store.get(record.bucket, key)
    record.store.put(record.bucket, key, body[: len(body) // 2])
    return key


def told(ledger: MemoryLedger) -> list[str]:
    return sorted(key for bucket, key, _, _ in ledger.ignored() if bucket == "tidemill")


def test_everything_but_the_damaged_records_is_restored(record: Record, ledger: MemoryLedger) -> None:
    record.put_function(function("torn"))
    record.put_pool(PoolSpec(name="torn"))
    for job_id in (DAMAGED, GOOD):
        record.put_request(request(job_id))
        record.commit(commit(f"{int(job_id) + 4:032x}"))
    damaged = [
        tear(record, keys.function("torn")),
        tear(record, keys.pool("torn")),
        tear(record, keys.request("ocr", DAMAGED, 1)),
        tear(record, keys.commit("ocr", f"{5:032x}", 1)),
    ]
    found = rebuild(ledger, record)
    assert (found.settled, found.published, found.queued, found.damaged) == (1, 1, 1, 4)
    assert (set(ledger.functions()), set(ledger.pools())) == ({"ocr"}, {"p"})
    assert ledger.known([DAMAGED, GOOD, f"{5:032x}", f"{6:032x}"]) == [False, True, False, True]
    assert told(ledger) == sorted(damaged)


def test_a_damaged_manifest_still_says_that_its_job_is_over(record: Record, ledger: MemoryLedger) -> None:
    record.put_request(request(DAMAGED))
    record.commit(commit(DAMAGED))
    record.publish(commit(DAMAGED))
    tear(record, keys.manifest("ocr", DAMAGED, 1))
    found = rebuild(ledger, record)
    assert (found.settled, found.published, found.queued) == (1, 0, 0)
    assert ledger.known([DAMAGED]) == [True]


def test_what_the_ledger_still_knows_of_a_damaged_pool_or_function_stays(record: Record, ledger: MemoryLedger) -> None:
    rebuild(ledger, record)
    tear(record, keys.pool("p"))
    tear(record, keys.function("ocr"))
    rebuild(ledger, record)
    assert (set(ledger.functions()), set(ledger.pools())) == ({"ocr"}, {"p"})


def test_a_pool_whose_record_is_there_stays_whatever_the_listing_and_the_list_of_damage_say(
    record: Record, ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.put_pool(PoolSpec(name="p"))
    ledger.put_pool(PoolSpec(name="gone"))
    monkeypatch.setattr(record, "pools", list)
    rebuild(ledger, record)
    assert set(ledger.pools()) == {"p"}
    tear(record, keys.pool("p"))
    monkeypatch.setattr(record, "damaged", dict)  # it holds a thousand at most
    rebuild(ledger, record)
    assert set(ledger.pools()) == {"p"}


def test_calls_of_a_damaged_function_wait_until_it_is_mended(record: Record, ledger: MemoryLedger) -> None:
    record.put_request(request(GOOD))
    whole = record.store.get(record.bucket, keys.function("ocr"))
    tear(record, keys.function("ocr"))
    assert rebuild(ledger, record).queued == 0, "nobody knows how often it may be tried, and placement would end it"
    record.store.put(record.bucket, keys.function("ocr"), whole)
    assert rebuild(ledger, record).queued == 1


def test_a_damaged_commit_does_not_keep_others_from_being_finished(record: Record, ledger: MemoryLedger) -> None:
    ledger.advance(2, 1)
    record.commit(commit(DAMAGED))
    record.commit(commit(GOOD))
    damaged = tear(record, keys.commit("ocr", DAMAGED, 1))
    assert finish_forgotten(ledger, record) == 1
    assert ledger.known([DAMAGED, GOOD]) == [False, True]
    assert told(ledger) == [damaged]
