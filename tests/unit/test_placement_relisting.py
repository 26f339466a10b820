"""Which finished jobs are in the lists again after the ledger lost its memory, over the twins in memory."""

from __future__ import annotations

import pytest

from tidemill.errors import LedgerUnavailable
from tidemill.ledger.api import Memory, NewJob
from tidemill.models import Job, JobError, JobInput, JobState, RequestRecord
from tidemill.record import Record, keys
from tidemill.record.ending import End, finish
from tidemill.testing import MemoryLedger, MemoryStore
from tidemill_placement import rebuild as rebuilding
from tidemill_placement import relisting
from tidemill_placement.rebuild import rebuild

START_S = 1_700_000_000


class Place:
    """A bucket whose clock moves one second with each job, and the ledger of before."""

    def __init__(self) -> None:
        self.now_s = float(START_S)
        self.store = MemoryStore(clock=lambda: self.now_s)
        self.record = Record(self.store, "tidemill")
        self.record.prepare()
        self.ledger = MemoryLedger(lambda: self.now_s)
        self.ledger.begin_epoch(1, 1)

    def end(self, number: int, state: str = "succeeded", generation: int = 1) -> str:
        """A job that is accepted and ends."""
        self.now_s += 1
        job_id = f"{number:032x}"
        self.ledger.submit(NewJob(job_id, "ocr", source(number), "r1", generation=generation))
        claim = self.ledger.seize(job_id, "test", 60.0)
        assert claim is not None
        error = None if state == "succeeded" else JobError(code="timeout")
        finish(self.ledger, self.record, claim, None, End(state, error), now=lambda: self.now_s)  # type: ignore[arg-type]
        return job_id

    def lost(self, since: float = 0.0) -> MemoryLedger:
        """An empty ledger after its rebuild, and what follows it."""
        found = MemoryLedger(lambda: self.now_s)
        found.begin_epoch(2, 0)
        names = rebuild(found, self.record, since=since).unlisted
        assert listed(found, state=JobState.succeeded) == listed(found, state=JobState.failed) == []
        found.advance(2, 1)
        self.relisted = relisting.relist(found, self.record, names)
        return found


def source(number: int) -> JobInput:
    return JobInput(bucket="inbox", key=f"{number}.png", etag="e", size=3, last_modified=1)


def listed(ledger: MemoryLedger, **filters: object) -> list[Job]:
    return list(ledger.jobs(**filters).jobs)  # type: ignore[arg-type]


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(rebuilding, "NEWEST", 3)
    monkeypatch.setattr(relisting, "FAILURES", 4)
    return Place()


def test_the_newest_jobs_are_listed_as_they_were(place: Place) -> None:
    ids = [place.end(number) for number in range(1, 6)]
    after = place.lost()
    assert [job.id for job in listed(after)] == ids[:1:-1]
    # The end is the ledger's time before, and the commit's time afterwards.
    facts = [[job.model_dump(exclude={"finished_at"}) for job in listed(where)] for where in (after, place.ledger)]
    assert facts[0] == facts[1][:3]
    assert place.relisted == 3
    assert after.known(ids) == [True] * 5


def test_failures_are_listed_far_beyond_the_newest(place: Place) -> None:
    ids = [place.end(number, "failed") for number in range(1, 6)]
    others = [place.end(number) for number in range(10, 20)]
    after = place.lost()
    assert [job.id for job in listed(after, state=JobState.failed, reason="timeout")] == ids[:0:-1]
    assert [job.id for job in listed(after, state=JobState.succeeded)] == others[:-4:-1]
    assert after.counts() == {"ocr": {JobState.failed: 4, JobState.succeeded: 3}}


def test_a_failure_that_was_retried_well_is_none(place: Place) -> None:
    job_id = place.end(1, "failed")
    place.end(1, generation=2)
    (job,) = listed(place.lost())
    assert (job.id, job.generation, job.state, job.error) == (job_id, 2, JobState.succeeded, None)


def test_a_failure_whose_retry_waits_is_open(place: Place) -> None:
    job_id = place.end(1, "failed")
    place.record.put_request(
        RequestRecord(job_id=job_id, function="ocr", generation=2, input=source(1), created_at=1.0)
    )
    (job,) = listed(place.lost())
    assert (job.id, job.generation, job.state) == (job_id, 2, JobState.queued)


def test_what_has_left_the_lists_by_its_age_stays_away(place: Place) -> None:
    place.end(1, "failed")
    young = place.end(2, "failed")
    assert [job.id for job in listed(place.lost(since=START_S + 2))] == [young]


def test_the_stream_has_them_in_the_order_in_which_they_ended(place: Place) -> None:
    ids = [place.end(number, state) for number, state in ((3, "failed"), (1, "succeeded"), (2, "failed"))]
    lines = place.lost().transitions("0")
    assert [line.job_id for line in lines if line.state.terminal] == ids


def test_a_damaged_manifest_is_left_out(place: Place) -> None:
    damaged, sound = place.end(1, "failed"), place.end(2, "failed")
    place.store.put("tidemill", keys.manifest("ocr", damaged, 1), b"{")
    after = place.lost()
    assert [job.id for job in listed(after)] == [sound]
    assert [key for _, key, _, _ in after.ignored()] == [keys.manifest("ocr", damaged, 1)]


def test_a_failure_that_was_noted_and_never_published_is_left_out(place: Place) -> None:
    place.store.put("tidemill", keys.failure("ocr", "ab" * 16, 1), b"")
    assert listed(place.lost()) == []


def test_a_ledger_without_room_gets_its_open_jobs_only(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.end(1, "failed")
    monkeypatch.setattr(MemoryLedger, "memory", lambda _: Memory(used=61, limit=100))
    after = place.lost()
    assert listed(after) == []
    assert after.known([f"{1:032x}"]) == [True]


def test_what_was_retried_between_rebuild_and_relisting_stays_as_it_is(place: Place) -> None:
    retried, other = place.end(1, "failed"), place.end(2, "failed")
    place.ledger = MemoryLedger(lambda: place.now_s)
    place.ledger.begin_epoch(2, 0)
    names = rebuild(place.ledger, place.record).unlisted
    place.ledger.advance(2, 1)
    place.end(1, generation=2)
    assert relisting.relist(place.ledger, place.record, names) == 1
    facts = {job.id: (job.generation, job.state) for job in listed(place.ledger)}
    assert facts == {retried: (2, JobState.succeeded), other: (1, JobState.failed)}


def test_a_relisting_that_broke_off_is_done_by_the_next_call_and_then_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.end(1, "failed")
    after = MemoryLedger(lambda: place.now_s)
    after.begin_epoch(2, 0)
    work = relisting.Relisting(after, place.record)
    assert work.run() == 0
    work.add(rebuild(after, place.record).unlisted)
    with monkeypatch.context() as away:
        away.setattr(after, "memory", lambda: (_ for _ in ()).throw(LedgerUnavailable("away")))
        with pytest.raises(LedgerUnavailable):
            work.run()
    assert (work.run(), work.run()) == (1, 0)
