"""Redis emptied or restored from an older copy, at any moment, over a real Valkey and a real SeaweedFS.

The test plays the agent and counts what it runs. Whatever Redis forgets: every accepted input is done, running or
queued again, nothing is published twice, and attempts from before change nothing in the ledger.
"""

import base64
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from pydantic import SecretStr

from tests.support import S3
from tidemill.errors import LedgerUnavailable
from tidemill.ledger import connect
from tidemill.ledger.api import AgentReport, Claim, NewJob
from tidemill.ledger.redis_ledger import RedisLedger
from tidemill.models import (
    CommitOutput,
    FunctionRecord,
    FunctionSpec,
    JobInput,
    JobState,
    Placement,
    PoolSpec,
    RequestRecord,
)
from tidemill.record import Record
from tidemill.record.ending import End, finish, resume
from tidemill.settings import StoreSettings
from tidemill.store import ObjectInfo, open_store
from tidemill_placement.epoch import Deposed, EpochKeeper
from tidemill_placement.rebuild import rebuild
from tidemill_placement.relisting import Relisting

FUNCTION = FunctionRecord(
    spec=FunctionSpec.model_validate(
        {
            "name": "ocr",
            "handler": "m:f",
            "trigger": [{"bucket": "inbox", "prefix": "in/"}],
            "output": {"bucket": "outbox", "prefix": "out/"},
        }
    ),
    revision="r1",
    deployed_at=1,
    triggers_since=0,
)
POOL = PoolSpec(name="p", slots=4)


class Site:
    """A ledger, a bucket, a leader's epoch keeper, and an agent."""

    def __init__(self, url: str, record: Record) -> None:
        self.ledger = connect(url)
        self.server = redis.Redis.from_url(url)
        self.record = record
        self.relisting = Relisting(self.ledger, record)
        self.keeper = self.leader()
        self.runs: Counter[str] = Counter()
        record.put_function(FUNCTION)
        record.put_pool(POOL)
        record.store.ensure_bucket("outbox")
        assert self.keeper.keep()

    def leader(self, restore: Callable[[], object] | None = None) -> EpochKeeper:
        return EpochKeeper(self.ledger, self.record, restore or self.rebuild)

    def rebuild(self) -> None:
        self.relisting.add(rebuild(self.ledger, self.record).unlisted)

    def keep(self) -> None:
        """As leaders do: a new one comes when one was deposed, and each tries again; then lists come back."""
        for _ in range(5):
            try:
                self.keeper.keep()
            except Deposed:
                self.keeper = self.leader()
            except LedgerUnavailable:
                continue
            else:
                self.relisting.run()
                return
        raise AssertionError("no leader came through")

    def accept(self, number: int, generation: int = 1) -> str:
        """An API call: its request record, then the ledger."""
        job_id = f"{number:032x}"
        source = JobInput(bucket="inbox", key=f"in/{number}.png", etag="e", size=3)
        self.record.put_request(
            RequestRecord(job_id=job_id, function="ocr", generation=generation, input=source, created_at=1.0)
        )
        self.ledger.submit(NewJob(job_id, "ocr", source, "r1", generation=generation))
        return job_id

    def claim(self, job_id: str) -> Claim:
        self.beat()
        assert self.ledger.release(job_id, "p-a", Placement(pool="p"))
        (claim,) = self.ledger.claim("p-a", 1, 60.0)
        assert claim.job.id == job_id
        return claim

    def beat(self) -> None:
        self.ledger.heartbeat(AgentReport("p-a", "p", 4))

    def run(self, claim: Claim, text: bytes = b"result") -> None:
        """What an agent does with a claim."""
        if claim.look_first and resume(self.ledger, self.record, claim) is not None:
            return
        self.runs[claim.job.id] += 1
        output = CommitOutput(
            name="result",
            bucket="outbox",
            key=f"out/{claim.job.id}",
            size=len(text),
            sha256=hashlib.sha256(text).hexdigest(),
            inline=base64.b64encode(text).decode(),
        )
        finish(self.ledger, self.record, claim, FUNCTION, End("succeeded", outputs=(output,)))

    def work_off(self) -> None:
        """Sweep, place, claim, run: until nothing is open."""
        while True:
            swept = self.ledger.sweep("placement", 60.0, 3600.0)
            for claim in swept.unpublished:
                assert resume(self.ledger, self.record, claim) is not None
            assert not swept.exhausted
            self.beat()
            for claim in self.ledger.claim("p-a", 100, 60.0):
                self.run(claim)
            waiting = list(self.ledger.jobs(state=JobState.queued, limit=1000).jobs)
            for job in waiting:
                self.run(self.claim(job.id))
            if not waiting and not list(self.ledger.iter_open()):
                return

    def copy(self) -> dict[bytes, tuple[bytes, int]]:
        """All keys as they are now."""
        found: dict[bytes, tuple[bytes, int]] = {}
        for key in self.server.scan_iter("*", count=1000):
            dumped: Any = self.server.dump(key)
            lives: Any = self.server.pttl(key)
            if dumped is not None:
                found[key] = (dumped, max(0, lives))
        return found

    def restore(self, copy: dict[bytes, tuple[bytes, int]]) -> None:
        self.server.flushdb()
        for key, (dumped, lives) in copy.items():
            self.server.restore(key, lives, dumped)

    def outputs(self) -> dict[str, ObjectInfo]:
        return {info.key: info for page in self.record.store.pages("outbox") for info in page}

    def manifests(self) -> dict[str, ObjectInfo]:
        pages = self.record.store.pages(self.record.bucket, "manifests/")
        return {info.key: info for page in pages for info in page}


@pytest.fixture
def site(redis_url: str, s3: S3, bucket: str) -> Iterator[Site]:
    settings = StoreSettings(
        endpoint=s3.endpoint,
        access_key=s3.access_key,
        secret_key=SecretStr(s3.secret_key),
        region=s3.region,
        bucket=bucket,
    )
    record = Record(open_store(settings), bucket)
    record.prepare()
    for key in [info.key for page in _listed(record) for info in page]:
        record.store.delete("outbox", key)
    found = Site(redis_url, record)
    yield found
    found.ledger.close()
    found.server.close()


def _listed(record: Record) -> Iterator[list[ObjectInfo]]:
    return record.store.pages("outbox") if record.store.bucket_exists("outbox") else iter(())


class Story:
    """Jobs in all states at the time of the copy, and what became of them afterwards."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.done, self.queued, self.released, self.running, self.lost = (site.accept(n) for n in range(1, 6))
        site.run(site.claim(self.done))
        self.old_claim = site.claim(self.running)
        self.lost_claim = site.claim(self.lost)
        site.beat()
        assert site.ledger.release(self.released, "p-a", Placement(pool="p"))
        site.keep()
        self.copy = site.copy()
        site.keep()
        # After the copy: all but one are finished, one is retried, and one more comes.
        site.run(self.old_claim)
        site.run(site.ledger.claim("p-a", 1, 60.0)[0])
        site.run(site.claim(self.queued))
        self.new = site.accept(9)
        self.retried = site.accept(1, generation=2)
        self.outputs, self.manifests = site.outputs(), site.manifests()
        self.runs = Counter(site.runs)

    def check(self) -> None:
        """Everything is done, what was published is untouched, and only what had not ended ran again."""
        site = self.site
        site.work_off()
        everything = [self.done, self.queued, self.released, self.running, self.lost, self.new]
        assert all(site.ledger.known(everything))
        manifests = site.manifests()
        assert {key: manifests[key] for key in self.manifests} == self.manifests
        wanted = {f"manifests/ocr/{job_id}.1.json" for job_id in everything}
        assert set(manifests) == wanted | {f"manifests/ocr/{self.done}.2.json"}
        outputs = site.outputs()
        replaced = f"out/{self.done}"  # by its second generation
        assert {k: v for k, v in outputs.items() if k in self.outputs and k != replaced} == {
            k: v for k, v in self.outputs.items() if k != replaced
        }
        assert len(outputs) == 6
        assert site.runs - self.runs == Counter({self.lost: 1, self.new: 1, self.done: 1})
        assert set(site.ledger.functions()) == {"ocr"} and site.ledger.functions()["ocr"] == FUNCTION
        assert site.ledger.pools()["p"].spec == POOL


def test_an_emptied_redis_is_rebuilt_from_names(site: Site) -> None:
    story = Story(site)
    site.server.flushdb()
    site.keep()
    assert site.ledger.epoch() == (2, 1)
    story.check()


def test_an_older_copy_of_redis_starts_nothing_that_is_finished(site: Site) -> None:
    story = Story(site)
    site.restore(story.copy)
    site.keep()
    assert site.ledger.epoch() == (2, 1)
    story.check()


def test_what_an_older_copy_does_before_anybody_notices_is_harmless(site: Site) -> None:
    """The old state is live for seconds: what it takes for queued runs again, and loses against the commit record."""
    story = Story(site)
    site.restore(story.copy)
    site.beat()
    assert site.ledger.release(story.queued, "p-a", Placement(pool="p"))
    claims = site.ledger.claim("p-a", 5, 60.0)
    assert [claim.job.id for claim in claims] == [story.released, story.queued]
    for claim in claims:
        site.run(claim, b"a second result")
    assert site.record.store.get("outbox", f"out/{story.queued}") == b"result"
    assert site.record.store.get("outbox", f"out/{story.released}") == b"result"
    site.keep()
    story.runs = Counter(site.runs)
    story.check()


def test_the_same_copy_twice_in_a_row(site: Site) -> None:
    story = Story(site)
    for epoch in (2, 3):
        site.restore(story.copy)
        site.keep()
        assert site.ledger.epoch() == (epoch, 1)
    story.check()


def test_emptied_after_a_copy_was_restored_and_the_other_way_round(site: Site) -> None:
    story = Story(site)
    site.restore(story.copy)
    site.keep()
    site.server.flushdb()
    site.keep()
    site.restore(story.copy)
    site.keep()
    assert site.ledger.epoch() == (4, 1)
    story.check()


@pytest.mark.parametrize("how", ["emptied", "restored"])
@pytest.mark.parametrize("step", ["commits", "pools", "open_requests", "functions"])
def test_once_more_in_the_middle_of_a_rebuild(site: Site, monkeypatch: pytest.MonkeyPatch, how: str, step: str) -> None:
    story = Story(site)
    real = getattr(site.record, step)
    strikes = iter([True])

    def struck(*args: Any) -> Any:
        found = real(*args)
        if next(strikes, False):
            if how == "emptied":
                site.server.flushdb()
            else:
                site.restore(story.copy)
        return found

    monkeypatch.setattr(site.record, step, struck)
    site.server.flushdb()
    site.keep()
    epoch = site.ledger.epoch()
    assert epoch is not None and epoch[0] == 3 and epoch[1] > 0
    story.check()


def test_an_attempt_from_before_changes_nothing_in_the_ledger_and_its_result_counts(site: Site) -> None:
    """It wins the commit record: its outputs are the result, and the ledger hears of it from whoever claims next."""
    story = Story(site)
    site.server.flushdb()
    site.keep()
    waiting = site.ledger.job(story.lost)
    assert waiting is not None and waiting.state is JobState.queued
    before = site.ledger.counts()
    assert not site.ledger.renew([story.lost_claim.token], 60.0)[0].held
    assert not site.ledger.give_back(story.lost_claim.token)
    site.run(story.lost_claim, b"of the old attempt")
    assert site.ledger.counts() == before
    assert site.record.store.get("outbox", f"out/{story.lost}") == b"of the old attempt"
    site.runs[story.lost] -= 1
    story.manifests, story.outputs = site.manifests(), site.outputs()
    site.work_off()
    found = site.ledger.job(story.lost)
    assert found is not None and found.state is JobState.succeeded and site.runs[story.lost] == 0
    assert site.record.store.get("outbox", f"out/{story.lost}") == b"of the old attempt"


def test_a_publication_that_broke_off_is_finished_by_the_rebuild(site: Site) -> None:
    job_id = site.accept(1)
    claim = site.claim(job_id)
    publish = site.record.publish
    site.record.publish = _dies  # type: ignore[method-assign]
    with pytest.raises(ConnectionAbortedError):
        site.run(claim)
    site.record.publish = publish  # type: ignore[method-assign]
    assert site.outputs() == {}
    site.server.flushdb()
    site.keep()
    assert list(site.outputs()) == [f"out/{job_id}"]
    found = site.ledger.job(job_id)
    assert site.ledger.known([job_id]) == [True] and found is not None and found.state is JobState.succeeded


def _dies(commit: Any, **_more: object) -> Any:
    raise ConnectionAbortedError("killed between commit and publication")


def test_an_event_about_a_finished_object_during_a_rebuild_runs_nothing_twice(site: Site) -> None:
    """The settled set is not complete yet: the job is accepted, and its claim looks first."""
    job_id = site.accept(1)
    site.run(site.claim(job_id))
    before = site.outputs(), site.manifests()
    site.server.flushdb()

    def restore() -> None:
        source = JobInput(bucket="inbox", key="in/1.png", etag="e", size=3)
        assert site.ledger.submit(NewJob(job_id, "ocr", source, "r1")).created
        rebuild(site.ledger, site.record)

    assert site.leader(restore).keep()
    site.work_off()
    assert (site.outputs(), site.manifests()) == before and site.runs[job_id] == 1


def test_a_rebuild_reads_names_and_the_relisting_after_it_only_the_newest_finished_jobs(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 40):
        site.run(site.claim(site.accept(number)))
    site.server.flushdb()
    store = site.record.store
    read: list[str] = []
    real = store.get

    def get(bucket: str, key: str, **kwargs: Any) -> bytes:
        read.append(key.split("/")[0])
        return real(bucket, key, **kwargs)

    monkeypatch.setattr(store, "get", get)
    monkeypatch.setattr("tidemill_placement.rebuild.NEWEST", 10)
    assert site.keeper.keep()
    assert set(read) <= {"epoch", "functions", "pools"}
    assert site.relisting.run() == 10
    assert read.count("manifests") == 10
    assert isinstance(site.ledger, RedisLedger) and site.ledger.epoch() == (2, 1)
