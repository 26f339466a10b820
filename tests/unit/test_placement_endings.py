"""An end that cannot be brought about concerns its own job only."""

from __future__ import annotations

from tidemill.ledger.api import NewJob
from tidemill.models import JobInput, JobState
from tidemill.record import Record
from tidemill.testing import MemoryLedger, MemoryStore
from tidemill_placement.endings import Endings


def test_a_damaged_commit_record_stops_no_other_end() -> None:
    store, ledger = MemoryStore(), MemoryLedger()
    record = Record(store)
    record.prepare()
    ledger.begin_epoch(1, 1)
    for job_id in ("a" * 32, "b" * 32):
        source = JobInput(bucket="inbox", key="x", etag="e", size=1)
        ledger.submit(NewJob(id=job_id, function="fn", input=source, revision="r1"))
    store.put(record.bucket, f"commits/fn/{'a' * 32}.1.json", b"not a record")
    endings = Endings(ledger, record, "placement", 15.0)

    assert endings.function_deleted("a" * 32, "fn") is False
    assert endings.function_deleted("b" * 32, "fn") is True

    other = ledger.job("b" * 32)
    assert other is not None
    assert other.state is JobState.cancelled
