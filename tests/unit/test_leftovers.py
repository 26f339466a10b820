"""What nobody can reach any more goes: results without a manifest, code of old revisions, uploads that broke off."""

import base64
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.gateway import archive
from tidemill.errors import NotAllowed
from tidemill.ledger.api import AgentReport, NewJob
from tidemill.models import CommitOutput, FunctionRecord, FunctionSpec, JobInput, Placement, RequestRecord
from tidemill.record import Record, keys
from tidemill.record.ending import End, finish
from tidemill.settings import RetentionSettings
from tidemill.store import Unfinished
from tidemill.testing import MemoryLedger, MemoryStore
from tidemill_gateway.auth import Owner
from tidemill_gateway.deploy import Deployer
from tidemill_placement.assembly import lifetimes
from tidemill_placement.retention import Retention

DAY = 86_400.0
ANN = Owner("ann")


class Site:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 1_700_000_000.0
        clock = lambda: self.now  # noqa: E731 - one clock for all
        self.ledger = MemoryLedger(clock)
        self.ledger.begin_epoch(1, 1)
        self.store = MemoryStore(clock)
        self.record = Record(self.store, "tidemill")
        self.record.prepare()
        self.deployer = Deployer(self.ledger, self.record, self.store, clock)

    def tidy(self, days: float = 0.0) -> None:
        """Let time pass, then let every prefix have its pass."""
        self.now += days * DAY
        again = Retention(
            self.ledger,
            self.record,
            lifetimes(RetentionSettings()),
            clock=lambda: self.now,
            ledger_clock=lambda: self.now,
        )
        while again.turn() < 60.0:
            self.now += 1.0

    def left(self, prefix: str) -> list[str]:
        return [info.key for page in self.store.pages("tidemill", prefix) for info in page]

    def deploy(self, name: str, code: bytes) -> str:
        """Deploy a function with this text as its code; gives the key of the archive."""
        path = self.folder / "code.tar.gz"
        path.write_bytes(archive({"work.py": code}))
        record = self.deployer.deploy(FunctionSpec(name=name, handler="work:run"), path, ANN)
        assert record.code_sha256 is not None
        return keys.code(record.code_sha256)

    def call(self, job_id: str) -> None:
        """A call of a function without `output`, and its result in the platform bucket."""
        function = FunctionRecord(
            spec=FunctionSpec(name="ocr", handler="m:f"), revision="r1", deployed_at=1, triggers_since=0
        )
        key = self.record.payload_key(job_id, "a")
        etag = self.store.put("tidemill", key, b"x")
        source = JobInput(bucket="tidemill", key=key, etag=etag, size=1, last_modified=int(self.now), name="a")
        self.record.put_request(RequestRecord(job_id=job_id, function="ocr", input=source, created_at=self.now))
        self.ledger.submit(NewJob(job_id, "ocr", source, "r1"))
        self.ledger.heartbeat(AgentReport("p-a", "p", 4))
        assert self.ledger.release(job_id, "p-a", Placement(pool="p"))
        [claim] = self.ledger.claim("p-a", 1, 60.0)
        output = CommitOutput(
            name="result.json",
            bucket="tidemill",
            key=f"{keys.results('ocr', job_id, 1)}result.json",
            size=1,
            sha256=hashlib.sha256(b"1").hexdigest(),
            inline=base64.b64encode(b"1").decode(),
        )
        finish(self.ledger, self.record, claim, function, End("succeeded", outputs=(output,)))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_results_stay_as_long_as_their_manifest_and_go_after_it(site: Site) -> None:
    site.call("a" * 32)
    site.tidy(89.0)
    assert len(site.left("results/")) == 1
    site.now += 2 * DAY
    site.tidy()  # the manifest goes in this pass or before the results' one, never after it
    site.tidy(1.0)
    assert site.left("manifests/") == site.left("results/") == []


@pytest.mark.parametrize("kept", ["request", "commit", "manifest", "job"])
def test_results_to_which_something_leads_stay(site: Site, kept: str) -> None:
    job_id = "a" * 32
    site.store.put("tidemill", f"results/ocr/{job_id}.1/result.json", b"1")
    site.store.put("tidemill", "results/of/somebody/else", b"1")
    site.now += 100 * DAY
    if kept == "job":
        site.ledger.submit(NewJob(job_id, "ocr", JobInput(bucket="b", key="k", etag="e", size=1), "r1"))
    else:
        site.store.put("tidemill", f"{kept}s/ocr/{job_id}.1.json", b"{}")
    site.tidy()
    assert len(site.left("results/")) == 2


def test_young_results_without_a_manifest_stay(site: Site) -> None:
    site.store.put("tidemill", f"results/ocr/{'a' * 32}.1/result.json", b"1")
    site.tidy(89.0)
    assert len(site.left("results/")) == 1
    site.tidy(2.0)
    assert site.left("results/") == []


def test_the_code_of_an_old_revision_goes_a_month_after_it_was_replaced(site: Site) -> None:
    old = site.deploy("ocr", b"old")
    other = site.deploy("other", b"other")
    site.now += 100 * DAY
    new = site.deploy("ocr", b"new")
    site.tidy(29.0)
    assert set(site.left(keys.CODE)) == {old, new, other}, "agents may still have the old one in hand"
    site.tidy(2.0)
    assert set(site.left(keys.CODE)) == {new, other}
    site.tidy(400.0)
    assert set(site.left(keys.CODE)) == {new, other}, "what is deployed stays however old it is"


def test_code_that_is_deployed_again_is_young_again(site: Site) -> None:
    old = site.deploy("ocr", b"old")
    site.deploy("ocr", b"new")
    site.now += 100 * DAY
    assert site.deploy("ocr", b"old") == old
    head = site.store.head("tidemill", old)
    assert head is not None and head.last_modified == int(site.now)
    site.tidy()
    assert old in site.left(keys.CODE)


def test_code_that_a_deploy_brings_back_in_the_middle_of_a_pass_stays(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = site.deploy("ocr", b"old")
    site.deploy("ocr", b"new")
    site.now += 100 * DAY
    pages: Callable[..., Iterator[object]] = site.store.pages

    def deploys_meanwhile(bucket: str, prefix: str = "", start_after: str | None = None) -> Iterator[object]:
        for page in pages(bucket, prefix, start_after):
            if prefix == keys.CODE:
                site.deploy("ocr", b"old")
            yield page

    monkeypatch.setattr(site.store, "pages", deploys_meanwhile)
    site.tidy()
    monkeypatch.undo()
    assert old in site.left(keys.CODE)


def test_no_code_goes_while_the_record_of_a_function_cannot_be_read(site: Site) -> None:
    old = site.deploy("ocr", b"old")
    site.deploy("ocr", b"new")
    site.deploy("torn", b"torn")
    key = keys.function("torn")
    whole = site.store.get("tidemill", key)
    site.store.put("tidemill", key, b"{")
    site.tidy(100.0)
    assert old in site.left(keys.CODE)
    site.store.put("tidemill", key, whole)
    site.tidy(2.0)
    assert old not in site.left(keys.CODE) and len(site.left(keys.CODE)) == 2


def test_an_upload_that_was_left_behind_is_dropped_after_a_day(site: Site) -> None:
    site.store.begin_upload("tidemill", "payloads/x/0/a")
    site.tidy(0.5)
    site.store.begin_upload("tidemill", "payloads/x/0/b")
    site.tidy(0.6)
    assert [upload.key for upload in site.store.unfinished("tidemill")] == ["payloads/x/0/b"]


def test_a_store_that_does_not_tell_of_uploads_stops_nothing_else(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(bucket: str) -> list[Unfinished]:
        raise NotAllowed("not for you")

    monkeypatch.setattr(site.store, "unfinished", refused)
    site.store.put("tidemill", "canary/g/1", b"")
    site.tidy(2.0)
    assert site.left("canary/") == []
