"""Retention over the twins in memory, with a clock to turn: what goes, when, in which order, and what never goes."""

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from tidemill.errors import InvalidSpec, NotAllowed, StoreUnavailable
from tidemill.ledger.api import AgentReport, Claim, Memory, NewJob
from tidemill.models import (
    CancelRecord,
    CommitOutput,
    FunctionRecord,
    FunctionSpec,
    JobError,
    JobInput,
    JobState,
    Placement,
    RequestRecord,
    object_job_id,
)
from tidemill.record import Record
from tidemill.record.ending import End, finish
from tidemill.store import ObjectInfo
from tidemill.testing import MemoryLedger, MemoryStore
from tidemill_placement.rebuild import rebuild
from tidemill_placement.retention import Lifetimes, Retention

DAY = 86_400.0
LIFE = Lifetimes(
    requests=7 * DAY,
    payloads=7 * DAY,
    attempts=DAY,
    logs=30 * DAY,
    manifests=90 * DAY,
    jobs=7 * DAY,
    results=90 * DAY,
    code=30 * DAY,
    uploads=DAY,
)


class Death(Exception):
    """The process is gone."""


class Mortal(MemoryStore):
    """A store at which a process may die, or the store itself, just before the n-th deletion."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self.deletions_left = -1
        self.deleted: list[str] = []
        self.error: Exception = Death()

    def delete(self, bucket: str, key: str) -> None:
        if self.deletions_left == 0:
            self.deletions_left = -1
            raise self.error
        self.deletions_left -= 1
        self.deleted.append(key)
        super().delete(bucket, key)


class Site:
    """A function, its jobs, and retention."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0
        clock = lambda: self.now  # noqa: E731 - one clock for all
        self.ledger = MemoryLedger(clock)
        self.ledger.begin_epoch(1, 1)
        self.store = Mortal(clock)
        self.record = Record(self.store, "tidemill")
        self.record.prepare()
        self.store.deleted.clear()
        self.store.ensure_bucket("inbox")
        self.function = FunctionRecord(
            spec=FunctionSpec(name="ocr", handler="m:f"), revision="r1", deployed_at=1, triggers_since=0
        )
        self.record.put_function(self.function)
        self.retention = self.new()

    def new(self) -> Retention:
        return Retention(self.ledger, self.record, LIFE, clock=lambda: self.now, ledger_clock=lambda: self.now)

    def tidy(self, after_s: float = 0.0) -> None:
        """Let time pass, then let every prefix have its pass."""
        self.now += after_s
        again = self.new()
        while again.turn() < 60.0:
            self.now += 1.0

    def call(self, number: int, *, ends: bool = True, large: bool = False) -> str:
        """An API call with a payload; its job ends when told so."""
        job_id = hashlib.sha256(str(number).encode()).hexdigest()[:32]
        key = self.record.payload_key(job_id, "a.png")
        etag = self.store.put("tidemill", key, b"payload")
        source = JobInput(bucket="tidemill", key=key, etag=etag, size=7, last_modified=int(self.now), name="a.png")
        self.record.put_request(RequestRecord(job_id=job_id, function="ocr", input=source, created_at=self.now))
        self.ledger.submit(NewJob(job_id, "ocr", source, "r1"))
        if ends:
            self.end(self.claim(job_id), large=large)
        return job_id

    def drop(self, key: str) -> str:
        """An object in the inbox, and its finished job."""
        self.store.put("inbox", key, b"scan")
        info = self.store.head("inbox", key)
        assert info is not None
        job_id = object_job_id("ocr", "local", "inbox", key, info.etag, info.size, info.last_modified)
        source = JobInput(bucket="inbox", key=key, etag=info.etag, size=info.size, last_modified=info.last_modified)
        self.ledger.submit(NewJob(job_id, "ocr", source, "r1"))
        self.end(self.claim(job_id))
        return job_id

    def claim(self, job_id: str) -> Claim:
        self.ledger.heartbeat(AgentReport("p-a", "p", 4))
        assert self.ledger.release(job_id, "p-a", Placement(pool="p"))
        (claim,) = self.ledger.claim("p-a", 1, 60.0)
        return claim

    def attempt(self, claim: Claim, name: str = "big") -> str:
        key = self.record.attempt_prefix(claim.token) + name
        self.store.put("tidemill", key, b"large")
        return key

    def end(self, claim: Claim, *, large: bool = False) -> None:
        outputs = []
        if large:
            key = self.attempt(claim)
            digest = hashlib.sha256(b"large").hexdigest()
            outputs.append(
                CommitOutput(
                    name="big", bucket="inbox", key=f"out/{claim.job.id}", size=5, sha256=digest, attempt_key=key
                )
            )
        self.record.put_log("ocr", claim.job.id, claim.token.generation, b"a line")
        finish(self.ledger, self.record, claim, self.function, End("succeeded", outputs=tuple(outputs)))

    def left(self, *prefixes: str) -> list[str]:
        """The keys of the platform bucket below these prefixes (all but the function's)."""
        found = [info.key for page in self.store.pages("tidemill") for info in page]
        return [key for key in found if not key.startswith("functions/") and (not prefixes or key.startswith(prefixes))]


@pytest.fixture
def site() -> Site:
    return Site()


def test_a_finished_calls_request_and_payload_go_after_their_time_and_its_manifest_stays(site: Site) -> None:
    job_id = site.call(1, large=True)
    site.tidy(6.9 * DAY)
    assert len(site.left("requests/", "payloads/")) == 2
    site.tidy(0.2 * DAY)
    assert site.left("requests/", "payloads/", "attempts/") == []
    order = [key.split("/")[0] for key in site.store.deleted]
    assert order.index("requests") < order.index("payloads")
    assert len(site.left("manifests/", "commits/", "logs/")) == 3
    assert site.store.head("inbox", f"out/{job_id}") is not None, "what was published is the user's"


def test_the_wish_to_cancel_goes_when_the_job_is_over(site: Site) -> None:
    job_id = site.call(1, ends=False)
    claim = site.claim(job_id)
    source = claim.job.input
    wish = CancelRecord(
        job_id=job_id, function="ocr", revision="r1", generation=1, by="a", input=source, created_at=1, asked_at=2
    )
    site.record.put_cancel(wish)
    site.tidy(400 * DAY)
    assert site.left("cancels/") == [f"cancels/ocr/{job_id}.1.json"]
    finish(site.ledger, site.record, claim, site.function, End("cancelled"))
    site.tidy(DAY)
    assert site.left("cancels/") == []


def test_the_payload_and_the_request_of_an_open_call_never_go(site: Site) -> None:
    job_id = site.call(1, ends=False)
    site.tidy(400 * DAY)
    assert len(site.left("requests/", "payloads/")) == 2
    site.ledger = MemoryLedger(lambda: site.now)  # also when the ledger has lost it
    site.ledger.begin_epoch(2, 1)
    site.tidy(1.0)
    assert len(site.left("requests/", "payloads/")) == 2
    rebuild(site.ledger, site.record)
    site.end(site.claim(job_id))


def test_the_payload_of_a_retry_that_waits_stays_although_the_first_life_ended_long_ago(site: Site) -> None:
    job_id = site.call(1)
    first = site.record.get_request("ocr", job_id, 1)
    assert first is not None
    site.now += 6 * DAY
    site.record.put_request(first.model_copy(update={"generation": 2}))
    site.tidy(2 * DAY)
    assert site.left("requests/") == [f"requests/ocr/{job_id}.2.json"]
    assert len(site.left("payloads/")) == 1


def test_a_payload_that_no_call_ever_named_goes_after_its_time(site: Site) -> None:
    site.store.put("tidemill", site.record.payload_key("f" * 32, "clock"), b"")
    site.tidy(6.9 * DAY)
    assert len(site.left("payloads/")) == 1
    site.tidy(0.2 * DAY)
    assert site.left("payloads/") == []


def test_attempts_go_once_their_job_is_published_and_others_after_a_day(site: Site) -> None:
    done, running = site.call(1, large=True), site.call(2, ends=False)
    lost = site.call(3, ends=False)
    claim = site.claim(running)
    kept, gone = site.attempt(claim), site.attempt(site.claim(lost))
    assert len(site.left("attempts/")) == 3
    site.tidy(500)
    assert len(site.left("attempts/")) == 3, "another finisher may still be copying"
    site.tidy(200)
    assert site.left("attempts/") == sorted([kept, gone]) and done not in site.left("attempts/")[0]
    site.end(claim)
    site.ledger = MemoryLedger(lambda: site.now)
    site.ledger.begin_epoch(2, 1)
    site.tidy(0.9 * DAY)
    assert site.left("attempts/") == [gone]
    site.tidy(0.2 * DAY)
    assert site.left("attempts/") == []


def test_the_attempt_of_a_job_that_the_ledger_holds_as_open_stays_however_old(site: Site) -> None:
    key = site.attempt(site.claim(site.call(1, ends=False)))
    site.tidy(30 * DAY)
    assert site.left("attempts/") == [key]


def test_what_a_commit_without_manifest_still_needs_stays_and_other_attempts_go(site: Site) -> None:
    job_id = site.call(1, ends=False)
    claim = site.claim(job_id)
    site.end(claim, large=True)
    mine = site.record.attempt_prefix(claim.token) + "big"
    other = mine.replace("/1-1-", "/1-2-")
    site.store.put("tidemill", other, b"of an attempt that lost")
    site.store.delete("tidemill", f"manifests/ocr/{job_id}.1.json")
    site.ledger = MemoryLedger(lambda: site.now)
    site.ledger.begin_epoch(2, 1)
    site.tidy(30 * DAY)
    assert site.left("attempts/") == [mine]
    site.store.delete("inbox", f"out/{job_id}")
    assert rebuild(site.ledger, site.record).published == 1
    assert site.store.get("inbox", f"out/{job_id}") == b"large"


def test_a_manifest_lives_as_long_as_its_input_is_listed(site: Site) -> None:
    listed, changed, gone = site.drop("listed.png"), site.drop("changed.png"), site.drop("gone.png")
    site.tidy(89 * DAY)
    site.store.delete("inbox", "gone.png")
    site.store.put("inbox", "changed.png", b"another scan")
    assert len(site.left("manifests/", "commits/")) == 6
    site.tidy(2 * DAY)
    assert site.left("manifests/", "commits/") == [f"commits/ocr/{listed}.1.json", f"manifests/ocr/{listed}.1.json"]
    assert site.ledger.known([listed, changed, gone]) == [True, False, False]


def test_a_manifest_whose_inputs_bucket_is_missing_stays(site: Site) -> None:
    site.drop("a.png")
    site.store._buckets.pop("inbox")
    site.tidy(200 * DAY)
    assert len(site.left("manifests/")) == 1


@pytest.mark.parametrize("refusal", [InvalidSpec("HEAD: 400"), NotAllowed("HEAD: 403")])
def test_an_input_that_the_store_refuses_to_show_keeps_its_manifest_and_no_other_one(
    site: Site, monkeypatch: pytest.MonkeyPatch, refusal: Exception
) -> None:
    dropped = {site.drop(key): key for key in ("a", "b", "c")}
    first, *others = sorted(dropped)  # as they are listed
    denied = dropped[first]
    for job_id in others:
        site.store.delete("inbox", dropped[job_id])
    head = site.store.head

    def refusing(bucket: str, key: str, version_id: str | None = None) -> ObjectInfo | None:
        if key == denied:
            raise refusal
        return head(bucket, key, version_id)

    monkeypatch.setattr(site.store, "head", refusing)
    site.tidy(200 * DAY)
    assert [job_id for _, job_id, _ in site.record.manifests()] == [first]


def test_a_damaged_manifest_stays_and_hinders_nothing(site: Site) -> None:
    site.store.put("tidemill", f"manifests/ocr/{'0' * 32}.1.json", b"{")
    site.drop("a.png")
    site.store.delete("inbox", "a.png")
    site.tidy(200 * DAY)
    assert site.left("manifests/") == [f"manifests/ocr/{'0' * 32}.1.json"]


def test_a_manifest_stays_while_a_request_could_run_its_job_again(site: Site) -> None:
    job_id = site.call(1)
    site.store.delete("tidemill", site.record.payload_key(job_id, "a.png"))
    site.now += 91 * DAY
    site.ledger.expire(site.now)
    retention = site.new()
    for _ in retention._manifests(site.now):
        assert len(site.left("manifests/", "commits/")) == 2


def test_logs_and_leftovers_go_by_age(site: Site) -> None:
    site.call(1)
    site.store.put("tidemill", "probe/dead", b"")
    site.store.put("tidemill", "canary/dead", b"")
    site.tidy(0.9 * DAY)
    assert len(site.left("logs/", "probe/", "canary/")) == 3
    site.tidy(0.2 * DAY)
    assert len(site.left("logs/")) == 1 and site.left("probe/", "canary/") == []
    site.tidy(30 * DAY)
    assert site.left("logs/") == []


def test_the_note_of_a_failure_goes_when_its_job_leaves_the_lists(site: Site) -> None:
    job_id = site.call(1, ends=False)
    finish(site.ledger, site.record, site.claim(job_id), None, End("failed", JobError(code="x")), now=lambda: site.now)
    site.tidy(6.9 * DAY)
    assert site.left("failures/") == [f"failures/ocr/{job_id}.1.json"]
    site.tidy(0.5 * DAY)
    assert site.left("failures/") == [] and len(site.left("manifests/")) == 1


@pytest.mark.parametrize("died_before", range(9))
def test_a_death_before_any_deletion_leaves_nothing_that_runs_again_and_the_next_pass_finishes(
    site: Site, died_before: int
) -> None:
    call, scan = site.call(1, large=True), site.drop("gone.png")
    site.now += 100 * DAY
    site.store.delete("inbox", "gone.png")
    site.store.deleted.clear()
    site.store.deletions_left = died_before
    with pytest.raises(Death):
        site.tidy()
    site.store.deletions_left = -1
    again = MemoryLedger(lambda: site.now)
    again.begin_epoch(2, 0)
    published = set(site.store._buckets["inbox"])
    rebuilt = rebuild(again, site.record)
    assert (rebuilt.published, rebuilt.queued) == (0, 0), "nothing is done a second time"
    assert set(site.store._buckets["inbox"]) == published
    site.tidy()
    assert site.left() == []
    assert site.ledger.known([scan]) == [False] and call


def test_a_store_that_goes_away_delays_a_pass_and_no_more(site: Site) -> None:
    site.call(1)
    site.now += 8 * DAY
    site.store.error, site.store.deletions_left = StoreUnavailable("gone"), 0
    with pytest.raises(StoreUnavailable):
        site.retention.turn()
    while site.left("requests/"):
        site.now += max(1.0, site.retention.turn())
    assert site.now < 1_700_000_000.0 + 8 * DAY + 600


def test_an_idle_installation_lists_a_prefix_seldom_and_rests_in_between(site: Site) -> None:
    listings: list[str] = []
    real = site.store.pages

    def pages(bucket: str, prefix: str = "", start_after: str | None = None) -> Any:
        listings.append(prefix)
        return real(bucket, prefix, start_after)

    site.store.pages = pages  # type: ignore[method-assign]
    until = site.now + DAY
    turns = 0
    while site.now < until:
        site.now += site.retention.turn()
        turns += 1
    assert turns < 3000, "a look at the ledger each minute, and what is due"
    assert 20 <= listings.count("attempts/") <= 21, "each twentieth of a day"
    assert listings.count("manifests/") == 1 and listings.count("payloads/") <= 4


def test_many_objects_take_many_turns_and_a_hundredth_of_a_core(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2500):
        site.store.put("tidemill", f"logs/ocr/{number:032x}.1.txt", b"")
    site.now += 31 * DAY
    spent = iter(range(10**9))
    monkeypatch.setattr("tidemill_placement.retention.time.thread_time", lambda: next(spent) * 0.001)
    began, rests = site.now, []
    objects = site.store._buckets["tidemill"]
    while any(key.startswith("logs/") for key in objects):
        rests.append(site.retention.turn())
        site.now += rests[-1]
    cpu_s = next(spent) * 0.001
    assert len(rests) > 100, "a little at a time"
    assert site.now - began > cpu_s * 90


def test_finished_jobs_leave_the_ledger_after_their_time_and_open_ones_stay(site: Site) -> None:
    done, waiting = site.call(1), site.call(2, ends=False)
    site.tidy(6.9 * DAY)
    assert site.ledger.job(done) is not None
    site.tidy(0.2 * DAY)
    assert site.ledger.job(done) is None and site.ledger.known([done]) == [True]
    job = site.ledger.job(waiting)
    assert job is not None and job.state is JobState.queued


def test_a_ledger_above_three_fifths_of_its_memory_forgets_the_oldest_finished_jobs(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job takes a byte here, and of 2,000 there is room for 1,000 below the mark."""
    ids = [site.call(number) for number in range(1300)]
    site.now += 120
    fresh = site.call(5000)

    def memory() -> Memory:
        used = sum(sum(states.values()) for states in site.ledger.counts().values())
        return Memory(used=used, limit=1700)

    monkeypatch.setattr(site.ledger, "memory", memory)
    site.retention.turn()
    assert 500 < memory().used <= 1020
    known = [site.ledger.job(job_id) is not None for job_id in ids]
    assert known == sorted(known), "the oldest went first"
    assert site.ledger.job(fresh) is not None
    assert all(site.ledger.known(ids))
