"""Commits that an attempt from before a loss of Redis left behind, over the twins in memory."""

from __future__ import annotations

import pytest

from tidemill.ledger.api import Claim, NewJob, Token
from tidemill.models import Job, JobError, JobInput, JobState, Manifest
from tidemill.record import Record
from tidemill.record.ending import End, finish
from tidemill.testing import MemoryLedger, MemoryStore
from tidemill_placement.epoch import EpochKeeper
from tidemill_placement.forgotten import finish_forgotten
from tidemill_placement.rebuild import rebuild

SOURCE = JobInput(bucket="inbox", key="a.png", etag="e", size=3, last_modified=1)
JOB = f"{7:032x}"


class Died(Exception):
    """The agent was killed."""


class Mortal(Record):
    """A record whose user dies where it is told to."""

    dies_before_publishing = False

    def publish(self, commit: object, *, fresh: bool = False) -> Manifest:
        if self.dies_before_publishing:
            raise Died
        return super().publish(commit, fresh=fresh)  # type: ignore[arg-type]


@pytest.fixture
def record() -> Mortal:
    found = Mortal(MemoryStore(), "tidemill")
    found.prepare()
    return found


def commits_and_dies(ledger: MemoryLedger, record: Mortal) -> None:
    """An attempt of the first epoch."""
    job = Job(id=JOB, function="ocr", revision="r1", state=JobState.running, input=SOURCE, created_at=1)
    record.dies_before_publishing = True
    with pytest.raises(Died):
        finish(ledger, record, Claim(Token(JOB, 1, 1, 1, "n"), job, 3, False), None, End("failed", JobError(code="x")))
    record.dies_before_publishing = False


def rebuilt(record: Record) -> MemoryLedger:
    """An empty Redis after its rebuild."""
    ledger = MemoryLedger()
    EpochKeeper(ledger, record, lambda: rebuild(ledger, record)).keep()
    return ledger


def test_a_commit_made_after_the_rebuild_is_finished_though_its_input_is_gone(record: Mortal) -> None:
    ledger = rebuilt(record)
    commits_and_dies(ledger, record)
    assert record.get_manifest("ocr", JOB, 1) is None
    assert finish_forgotten(ledger, record) == 1
    assert record.get_manifest("ocr", JOB, 1) is not None
    assert ledger.known([JOB]) == [True]
    assert [job.id for job in ledger.jobs(state=JobState.failed).jobs] == [JOB]
    assert finish_forgotten(ledger, record) == 0


def test_a_job_that_the_ledger_has_in_hand_is_left_to_its_holder(record: Mortal) -> None:
    ledger = rebuilt(record)
    ledger.submit(NewJob(JOB, "ocr", SOURCE, "r1"))
    commits_and_dies(ledger, record)
    assert finish_forgotten(ledger, record) == 0
    assert record.get_manifest("ocr", JOB, 1) is None


def test_an_unfinished_rebuild_does_it_itself(record: Mortal) -> None:
    ledger = MemoryLedger()
    assert finish_forgotten(ledger, record) == 0, "no epoch"
    ledger.begin_epoch(2, 0)
    commits_and_dies(ledger, record)
    assert finish_forgotten(ledger, record) == 0
    assert rebuild(ledger, record).published == 1


def test_a_damaged_commit_keeps_no_other_one_waiting(record: Mortal) -> None:
    ledger = rebuilt(record)
    record.store.put(record.bucket, f"commits/ocr/{1:032x}.1.json", b"{")
    commits_and_dies(ledger, record)
    assert finish_forgotten(ledger, record) == 1


def test_a_damaged_commit_or_request_does_not_keep_the_rebuild_from_its_end(record: Mortal) -> None:
    record.store.put(record.bucket, f"commits/ocr/{1:032x}.1.json", b"{")
    record.store.put(record.bucket, f"requests/ocr/{2:032x}.1.json", b"{")
    commits_and_dies(MemoryLedger(), record)
    ledger = rebuilt(record)
    assert ledger.epoch() == (1, 1)
    assert ledger.known([JOB]) == [True]
