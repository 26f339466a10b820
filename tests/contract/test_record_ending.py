"""How a job ends: record and ledger together, whoever dies in between."""

import base64
import dataclasses
import hashlib
from functools import partial
from typing import Any

import pytest

from tidemill.errors import LedgerUnavailable, StoreUnavailable
from tidemill.ledger import connect
from tidemill.ledger.api import AgentReport, Claim, Ledger, NewJob
from tidemill.models import (
    CommitOutput,
    CommitRecord,
    Cost,
    FunctionRecord,
    FunctionSpec,
    JobError,
    JobInput,
    JobState,
    Placement,
)
from tidemill.record import Record
from tidemill.record.ending import End, finish, output_key, resume
from tidemill.testing import MemoryLedger, MemoryStore

JOB = "ab" * 16
LEASE_S = 30.0


@pytest.fixture(params=["memory", "valkey"])
def ledger(request: pytest.FixtureRequest) -> Ledger:
    found: Ledger = MemoryLedger() if request.param == "memory" else connect(request.getfixturevalue("redis_url"))
    found.begin_epoch(1, 0)
    return found


@pytest.fixture
def record() -> Record:
    found = Record(MemoryStore(), sleep=lambda seconds: None)
    found.prepare()
    found.store.ensure_bucket("outbox")
    return found


@pytest.fixture
def function() -> FunctionRecord:
    spec = FunctionSpec.model_validate(
        {"name": "caption", "handler": "c:f", "output": {"bucket": "outbox", "on_conflict": "overwrite"}}
    )
    return FunctionRecord(spec=spec, revision="r1", deployed_at=0.0, triggers_since=0.0)


def claimed(ledger: Ledger) -> Claim:
    source = JobInput(bucket="inbox", key="cat.jpg", etag="e", size=3, last_modified=5)
    ledger.submit(NewJob(id=JOB, function="caption", input=source, revision="r1"))
    claim = ledger.seize(JOB, "tester", LEASE_S)
    assert claim is not None
    return claim


def success(claim: Claim, function: FunctionRecord, body: bytes = b"A cat.") -> End:
    bucket, key = output_key(function.spec, claim.job, "result.txt")
    digest = hashlib.sha256(body).hexdigest()
    inline = base64.b64encode(body).decode()
    output = CommitOutput(name="result.txt", bucket=bucket, key=key, size=len(body), sha256=digest, inline=inline)
    return End("succeeded", outputs=(output,), cost=Cost(usd=0.5, gpu_seconds=2.0), run_s=1.5, started_at=9.0)


def test_a_success_is_committed_published_and_told(ledger: Ledger, record: Record, function: FunctionRecord) -> None:
    claim = claimed(ledger)
    manifest = finish(ledger, record, claim, function, success(claim, function), LEASE_S, now=lambda: 10.0)
    assert manifest is not None
    assert (manifest.state, manifest.finished_at, manifest.started_at, manifest.run_s) == ("succeeded", 10.0, 9.0, 1.5)
    assert record.store.get("outbox", "cat.jpg/result.txt") == b"A cat."
    assert record.get_manifest("caption", JOB, 1) == manifest
    stored = record.get_commit("caption", JOB, 1)
    assert stored is not None
    assert stored.on_conflict == "overwrite"
    job = ledger.job(JOB)
    assert job is not None
    assert (job.state, job.cost) == (JobState.succeeded, Cost(usd=0.5, gpu_seconds=2.0))
    assert [output.key for output in job.outputs] == ["cat.jpg/result.txt"]
    assert finish(ledger, record, claim, function, success(claim, function), LEASE_S) == manifest


def test_only_who_wrote_the_commit_just_now_publishes_without_looking_for_a_manifest(
    ledger: Ledger, record: Record, function: FunctionRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    real = Record.get_manifest
    monkeypatch.setattr(Record, "get_manifest", lambda self, *names: (looked.append(1), real(self, *names))[1])
    claim = claimed(ledger)
    manifest = finish(ledger, record, claim, function, success(claim, function), LEASE_S)
    assert looked == []
    # Its answer was lost, say, and the user took the result away before the second try.
    record.store.delete("outbox", "cat.jpg/result.txt")
    assert finish(ledger, record, claim, function, success(claim, function), LEASE_S) == manifest
    assert looked == [1]
    assert record.store.head("outbox", "cat.jpg/result.txt") is None


def test_an_agent_that_was_paused_after_its_commit_looks_for_a_manifest(
    ledger: Ledger, record: Record, function: FunctionRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = claimed(ledger)
    times = iter((0.0, 20.0))
    monkeypatch.setattr("tidemill.record.ending.time.monotonic", lambda: next(times, 20.0))
    commit = record.commit

    def paused(mine: CommitRecord) -> tuple[bool, CommitRecord]:
        """Meanwhile the lease ended and a finisher published; then the user took the result away."""
        decided = commit(mine)
        record.publish(mine)
        record.store.delete("outbox", "cat.jpg/result.txt")
        return decided

    monkeypatch.setattr(record, "commit", paused)
    assert finish(ledger, record, claim, function, success(claim, function), LEASE_S) is not None
    assert record.store.head("outbox", "cat.jpg/result.txt") is None


def test_a_failure_needs_no_function(ledger: Ledger, record: Record) -> None:
    claim = claimed(ledger)
    error = JobError(code="no_capacity", message="too big for every pool")
    placement = Placement(reason="none fits")
    manifest = finish(ledger, record, claim, None, End("failed", error, placement=placement), LEASE_S)
    assert manifest is not None
    assert (manifest.state, manifest.error, manifest.placement) == ("failed", error, placement)
    job = ledger.job(JOB)
    assert job is not None
    assert (job.state, job.error) == (JobState.failed, error)


def test_a_conflict_found_at_publication_is_what_the_ledger_hears(
    ledger: Ledger, record: Record, function: FunctionRecord
) -> None:
    strict = function.model_copy(update={"spec": function.spec.model_copy(update={"output": None})})
    claim = claimed(ledger)
    end = success(claim, strict)
    record.store.put("tidemill", end.outputs[0].key, b"foreign")
    manifest = finish(ledger, record, claim, strict, end, LEASE_S)
    assert manifest is not None
    assert manifest.state == "failed"
    job = ledger.job(JOB)
    assert job is not None
    assert job.state is JobState.failed
    assert job.error is not None
    assert job.error.code == "output_conflict"


def test_the_commit_that_was_first_is_the_one_that_is_finished(
    ledger: Ledger, record: Record, function: FunctionRecord
) -> None:
    claim = claimed(ledger)
    earlier = dataclasses.replace(claim, token=dataclasses.replace(claim.token, nonce="earlier"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Record, "publish", _die)
        with pytest.raises(StoreUnavailable):
            finish(ledger, record, earlier, function, success(claim, function, b"first"), LEASE_S)
    manifest = finish(ledger, record, claim, function, success(claim, function, b"second"), LEASE_S)
    assert manifest is not None
    assert record.store.get("outbox", "cat.jpg/result.txt") == b"first"
    job = ledger.job(JOB)
    assert job is not None
    assert job.state is JobState.succeeded


def test_a_stale_token_that_lost_the_commit_has_nothing_to_do(
    ledger: Ledger, record: Record, function: FunctionRecord
) -> None:
    claim = claimed(ledger)
    stale = dataclasses.replace(claim, token=dataclasses.replace(claim.token, nonce="stale"))
    manifest = finish(ledger, record, claim, function, success(claim, function, b"first"), LEASE_S)
    assert finish(ledger, record, stale, function, success(claim, function, b"late"), LEASE_S) is None
    assert record.get_manifest("caption", JOB, 1) == manifest
    assert record.store.get("outbox", "cat.jpg/result.txt") == b"first"


def test_a_later_claim_replaces_an_earlier_ones_result_though_its_agents_clock_is_behind(
    ledger: Ledger, record: Record, function: FunctionRecord
) -> None:
    ledger.advance(1, 1)
    source = JobInput(bucket="inbox", key="cat.jpg", etag="e", size=3, last_modified=5)
    for number, clock in enumerate((1e9, 1.0), 1):
        job_id = f"{number:032x}"
        ledger.submit(NewJob(id=job_id, function="caption", input=source, revision="r1"))
        ledger.heartbeat(AgentReport(f"cpu-{number}", "cpu", 1))
        assert ledger.release(job_id, f"cpu-{number}", Placement(pool="cpu", reason="free"))
        [claim] = ledger.claim(f"cpu-{number}", 1, LEASE_S)
        end = success(claim, function, str(number).encode())
        manifest = finish(ledger, record, claim, function, end, LEASE_S, now=partial(float, clock))
        assert manifest is not None
        assert manifest.state == "succeeded"
        stored = record.get_commit("caption", job_id, 1)
        assert stored is not None
        assert stored.claimed_at == claim.job.started_at
        assert stored.committed_at == clock
    assert record.store.get("outbox", "cat.jpg/result.txt") == b"2"


def test_resume_finds_nothing_for_a_job_that_has_not_ended(ledger: Ledger, record: Record) -> None:
    assert resume(ledger, record, claimed(ledger), LEASE_S) is None


def test_resume_ends_what_was_committed(ledger: Ledger, record: Record, function: FunctionRecord) -> None:
    claim = claimed(ledger)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Record, "publish", _die)
        with pytest.raises(StoreUnavailable):
            finish(ledger, record, claim, function, success(claim, function), LEASE_S)
    assert record.get_manifest("caption", JOB, 1) is None
    manifest = resume(ledger, record, claim, LEASE_S)
    assert manifest is not None
    assert record.store.get("outbox", "cat.jpg/result.txt") == b"A cat."
    job = ledger.job(JOB)
    assert job is not None
    assert job.state is JobState.succeeded


class Deaf:
    """A ledger that is away whenever a job's end is to be told."""

    def __init__(self, inner: Ledger) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        if name in ("commit", "published"):
            return self._away
        return getattr(self._inner, name)

    @staticmethod
    def _away(*_args: object) -> bool:
        raise LedgerUnavailable("away")


def test_results_do_not_wait_for_a_ledger_that_is_away(
    ledger: Ledger, record: Record, function: FunctionRecord
) -> None:
    claim = claimed(ledger)
    away: Any = Deaf(ledger)
    with pytest.raises(LedgerUnavailable):
        finish(away, record, claim, function, success(claim, function), LEASE_S)
    assert record.store.get("outbox", "cat.jpg/result.txt") == b"A cat."
    manifest = resume(ledger, record, claim, LEASE_S)
    assert manifest == record.get_manifest("caption", JOB, 1)
    job = ledger.job(JOB)
    assert job is not None
    assert job.state is JobState.succeeded


def _die(*_args: object, **_more: object) -> None:
    raise StoreUnavailable("killed here")
