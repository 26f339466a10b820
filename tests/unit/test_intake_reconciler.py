"""Which prefix is listed when: small inboxes often, large ones as seldom as they cost, all after a new epoch."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from tidemill.errors import InvalidSpec, NotAllowed, NotFound, StoreUnavailable, TidemillError
from tidemill.models import FunctionRecord, FunctionSpec, JobInput, RequestRecord
from tidemill.record import Record, keys
from tidemill.settings import GatewaySettings, IntakeSettings
from tidemill.store import ObjectInfo
from tidemill.testing import MemoryLedger, MemoryStore
from tidemill_gateway.catalogue import Table
from tidemill_gateway.intake.memo import Memo
from tidemill_gateway.intake.reconciler import Reconciler
from tidemill_gateway.intake.submit import Taken
from tidemill_gateway.services import Services

INTERVAL_S = 2.0


class Costly(MemoryStore):
    """A store whose listings take CPU time: so many seconds for each page of a prefix."""

    def __init__(self) -> None:
        super().__init__()
        self.costs: dict[str, float] = {}
        self.cpu = 0.0
        self.listed: list[str] = []
        self.away: set[str] = set()
        self.refused: dict[str, TidemillError] = {}
        self.asked: list[str] = []
        self.world: World | None = None

    def head(self, bucket: str, key: str, version_id: str | None = None) -> ObjectInfo | None:
        self.asked.append(key)
        if key in self.refused:
            raise self.refused[key]
        return super().head(bucket, key, version_id)

    def pages(self, bucket: str, prefix: str = "", start_after: str | None = None) -> Iterator[list[ObjectInfo]]:
        if bucket == "inbox":
            self.listed.append(prefix)
            if prefix in self.away:
                raise StoreUnavailable("away")
        for page in super().pages(bucket, prefix, start_after):
            self.cpu += self.costs.get(prefix, 0.0)
            if self.world is not None:
                self.world.now += self.costs.get(prefix, 0.0)
            yield page


class World:
    """A reconciler over twins and a clock that stands still unless a listing takes time."""

    def __init__(self, *prefixes: str) -> None:
        self.now = 0.0
        self.store = Costly()
        self.store.world = self
        record = Record(self.store)
        record.prepare()
        self.store.ensure_bucket("inbox")
        self.ledger = MemoryLedger()
        self.ledger.begin_epoch(1, 0)
        self.deploy(*prefixes)
        self.services = Services(
            ledger=self.ledger,
            record=record,
            store=self.store,
            bell=lambda *_: "",
            gateway=GatewaySettings(token=SecretStr("t")),
            intake=IntakeSettings(),
        )
        s = self.services
        self.reconciler = Reconciler(
            s.ledger,
            s.record,
            s.store,
            s.catalogue,
            s.submitter,
            s.pressure,
            s.metrics,
            holder="gateway-1",
            interval_s=INTERVAL_S,
            ticks=lambda: self.now,
            cpu_s=lambda: self.store.cpu,
        )

    def deploy(self, *prefixes: str, **more: Any) -> None:
        triggers = [{"bucket": "inbox", "prefix": prefix} for prefix in prefixes]
        spec = FunctionSpec.model_validate({"name": "echo", "handler": "w:f", "trigger": triggers})
        self.ledger.put_function(FunctionRecord(spec=spec, revision="r", deployed_at=0.0, triggers_since=0.0, **more))

    def run_until(self, end: float) -> list[str]:
        """The prefixes listed until then."""
        before = len(self.store.listed)
        while self.now < end:
            pause_s = self.reconciler.turn()
            assert pause_s > 0
            self.now += pause_s
        return self.store.listed[before:]

    def keys(self) -> set[str]:
        return {job.input.key for job in self.ledger.jobs(limit=1000).jobs}


def test_a_damaged_request_does_not_keep_the_others_from_being_taken() -> None:
    world = World("in/")
    record = world.services.record
    source = JobInput(bucket="inbox", key="in/a", etag="e", size=1)
    wanted = [f"{number:032x}" for number in range(1, 10)]
    for job_id in wanted:
        record.put_request(RequestRecord(job_id=job_id, function="echo", input=source, created_at=1.0))
    torn = keys.request("echo", wanted[0], 1)
    world.store.put(record.bucket, torn, b'{"job_id": "')
    world.reconciler.round()
    assert world.ledger.known(wanted) == [False] + [True] * 8
    assert [(bucket, key) for bucket, key, _, _ in world.ledger.ignored()] == [(record.bucket, torn)]


@pytest.mark.parametrize("bad", ["request", "manifest of a retry"])
def test_a_store_that_fails_for_one_record_keeps_no_other_request_from_being_taken(
    bad: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World("in/")
    record = world.services.record
    source = JobInput(bucket="inbox", key="in/a", etag="e", size=1)
    wanted = [f"{number:032x}" for number in range(1, 1003)]  # listed in two parts
    generation = 2 if bad != "request" else 1
    for job_id in wanted:
        request = RequestRecord(job_id=job_id, function="echo", input=source, created_at=1.0)
        record.put_request(request.model_copy(update={"generation": generation if job_id == wanted[0] else 1}))
    key = keys.request("echo", wanted[0], 1) if bad == "request" else keys.manifest("echo", wanted[0], 2)
    get = world.store.get

    def failing(bucket: str, name: str, **more: Any) -> bytes:
        if name == key:
            raise StoreUnavailable("500")
        return get(bucket, name, **more)

    monkeypatch.setattr(world.store, "get", failing)
    with pytest.raises(StoreUnavailable):
        world.reconciler.round()
    assert world.ledger.known(wanted) == [False] + [True] * 1001


def test_a_damaged_manifest_of_a_retry_does_not_keep_other_requests_from_being_taken() -> None:
    world = World("in/")
    record = world.services.record
    source = JobInput(bucket="inbox", key="in/a", etag="e", size=1)
    retried, wanted = "1" * 32, "2" * 32
    for job_id, generation in ((retried, 2), (wanted, 1)):
        record.put_request(
            RequestRecord(job_id=job_id, function="echo", generation=generation, input=source, created_at=1.0)
        )
    torn = keys.manifest("echo", retried, 2)
    world.store.put(record.bucket, torn, b"torn")
    world.reconciler.round()
    assert world.ledger.known([retried, wanted]) == [False, True], "it is over, whatever its manifest says"
    assert [(bucket, key) for bucket, key, _, _ in world.ledger.ignored()] == [(record.bucket, torn)]


def test_a_request_is_young_for_seconds_only_also_when_the_clock_of_its_gateway_is_ahead() -> None:
    world = World("in/")
    source = JobInput(bucket="inbox", key="in/a", etag="e", size=1)
    ahead, young = "1" * 32, "2" * 32
    for job_id, created_at in ((ahead, time.time() + 7200.0), (young, time.time() - 0.1)):
        world.services.record.put_request(
            RequestRecord(job_id=job_id, function="echo", input=source, created_at=created_at)
        )
    world.reconciler.round()
    assert world.ledger.known([ahead, young]) == [True, False], "its own gateway submits the young one right now"


def test_a_small_inbox_is_listed_at_its_own_pace_beside_a_large_one() -> None:
    world = World("large/", "small/")
    world.store.put("inbox", "large/1", b"x")
    world.store.costs["large/"] = 20.0
    listed = world.run_until(4000.0)

    # 20 s of CPU time at 2 % of a core: every 1,000 s.
    assert 3 <= listed.count("large/") <= 6
    assert listed.count("small/") > 0.9 * 4000 / INTERVAL_S


def test_between_two_pages_of_a_large_prefix_the_small_ones_are_served() -> None:
    world = World("large/", "small/")
    for number in range(3000):
        world.store.put("inbox", f"large/{number:05}", b"x")
    world.store.costs["large/"] = 5.0
    world.run_until(30.0)
    world.reconciler._cold_at = 0.0
    before = len(world.store.listed)
    world.reconciler.turn()

    assert world.store.listed[before:].count("small/") >= 3
    assert world.store.listed[before:].count("large/") == 1


def test_a_prefix_of_many_millions_is_listed_once_a_day() -> None:
    world = World("huge/")
    world.store.put("inbox", "huge/1", b"x")
    world.store.costs["huge/"] = 100_000.0
    listed = world.run_until(200_000.0)
    assert listed.count("huge/") == 2


def test_the_folder_where_something_came_is_listed_often_though_its_prefix_is_large() -> None:
    world = World("large/")
    world.store.put("inbox", "large/2026/1", b"x")
    world.store.costs["large/"] = 20.0
    world.run_until(100.0)
    world.store.put("inbox", "large/2026/2", b"y")
    listed = world.run_until(110.0)

    assert "large/" not in listed
    assert world.keys() == {"large/2026/1", "large/2026/2"}


def test_after_a_new_epoch_everything_is_listed_soon() -> None:
    world = World("large/", "small/")
    world.store.put("inbox", "large/1", b"x")
    world.store.costs["large/"] = 20.0
    world.run_until(100.0)
    assert "large/" not in world.run_until(110.0)
    world.ledger.begin_epoch(2, 0)
    assert "large/" in world.run_until(115.0)


def test_after_a_replay_everything_is_listed_soon() -> None:
    world = World("large/")
    world.store.put("inbox", "large/1", b"x")
    world.store.costs["large/"] = 20.0
    world.run_until(100.0)
    assert "large/" not in world.run_until(110.0)
    world.deploy("large/", replayed=("inbox/large/",))
    assert "large/" in world.run_until(115.0)


def test_a_prefix_that_cannot_be_listed_holds_up_no_other_one() -> None:
    world = World("a/", "b/")
    world.store.away.add("a/")
    for name in ("a/1", "b/1"):
        world.store.put("inbox", name, b"x")
    world.run_until(5.0)
    assert world.keys() == {"b/1"}
    world.store.away.clear()
    world.run_until(10.0)
    assert world.keys() == {"a/1", "b/1"}


@pytest.mark.parametrize("refusal", [InvalidSpec("HEAD: 400"), NotAllowed("HEAD: 403"), NotFound("no bucket")])
@pytest.mark.parametrize("others", [2, 2001], ids=["few", "several pages"])
def test_an_object_that_the_store_refuses_to_show_is_noted_and_holds_up_no_other_one(
    refusal: TidemillError, others: int
) -> None:
    world = World("in/")
    world.store.refused["in/0-sse-c"] = refusal
    for name in ("0-sse-c", *(f"{number:05}" for number in range(1, others + 1))):
        world.store.put("inbox", f"in/{name}", b"x")
    world.reconciler.round()
    assert {job.input.key for job in world.ledger.iter_open()} == {f"in/{n:05}" for n in range(1, others + 1)}
    ((bucket, key, reason, _),) = world.ledger.ignored()
    assert (bucket, key) == ("inbox", "in/0-sse-c")
    assert reason == f"not readable: {refusal}"


def test_very_many_refused_objects_are_not_all_asked_for_at_each_listing_and_others_are_found() -> None:
    world = World("in/")
    world.reconciler._refused = Memo(100, 300.0, lambda: world.now)  # far less than there are
    world.services.submitter._noted = Memo(100, 600.0)
    for number in range(6000):
        name = f"in/{number:05}"
        world.store.put("inbox", name, b"x")
        if number < 5000:
            world.store.refused[name] = NotAllowed("HEAD: 403")
    with capture_logs() as logs:
        world.reconciler.round()
    assert world.keys() == {f"in/{number:05}" for number in range(5000, 6000)}
    [told] = [line for line in logs if line["event"] == "reconciler.many_refused"]
    assert (told["bucket"], told["prefix"]) == ("inbox", "in/")
    for _ in range(3):
        before = len(world.store.asked)
        world.reconciler.round()
        assert 1000 <= len(world.store.asked) - before <= 1100


def test_an_object_among_very_many_refused_ones_is_found_by_a_later_listing() -> None:
    world = World("in/")
    for number in range(2001):
        name = f"in/{number:05}"
        world.store.put("inbox", name, b"x")
        if number != 1200:
            world.store.refused[name] = NotAllowed("HEAD: 403")
    world.run_until(60.0)
    assert world.keys() == {"in/01200"}


@pytest.mark.parametrize("entries", [2, 5])
def test_a_fault_of_our_own_at_one_object_keeps_those_beside_it_from_nothing(
    entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World("in/")
    for number in range(entries):
        world.store.put("inbox", f"in/{number}", b"x")
    listed = world.services.submitter.listed

    def faulty(table: Table, bucket: str, key: str) -> Taken:
        if key == "in/0":
            raise ZeroDivisionError
        return listed(table, bucket, key)

    monkeypatch.setattr(world.services.submitter, "listed", faulty)
    with pytest.raises(ZeroDivisionError):
        world.reconciler.round()
    assert world.keys() == {f"in/{number}" for number in range(1, entries)}


def test_a_refused_object_is_asked_for_again_after_minutes_and_becomes_one_job_when_the_refusal_is_over() -> None:
    world = World("in/")
    world.store.refused["in/a"] = NotAllowed("HEAD: 403")
    world.store.put("inbox", "in/a", b"x")
    listings = world.run_until(1000.0)
    assert len(listings) > 400
    assert 3 <= world.store.asked.count("in/a") <= 5
    world.store.refused.clear()
    world.run_until(1310.0)
    assert world.keys() == {"in/a"}
    asked = len(world.store.asked)
    world.run_until(2000.0)
    assert len(world.store.asked) == asked, "a job is asked for no more"


def test_new_content_of_a_refused_object_is_taken_by_the_next_listing() -> None:
    world = World("in/")
    world.store.refused["in/a"] = NotAllowed("HEAD: 403")
    world.store.put("inbox", "in/a", b"x")
    world.run_until(10.0)
    world.store.refused.clear()
    world.store.put("inbox", "in/a", b"new")
    world.run_until(15.0)
    assert world.keys() == {"in/a"}


@pytest.mark.parametrize("others", [1, 2001], ids=["beside it", "on later pages"])
def test_a_store_that_fails_for_one_object_keeps_others_from_nothing(others: int) -> None:
    world = World("in/")
    world.store.refused["in/a"] = StoreUnavailable("500")
    names = [f"b{number:04}" for number in range(others)]
    for name in ("a", *names):
        world.store.put("inbox", f"in/{name}", b"x")
    with capture_logs() as logs:
        world.run_until(5.0)
    assert {job.input.key for job in world.ledger.iter_open()} == {f"in/{name}" for name in names}
    assert "reconciler.broke_off" in {line["event"] for line in logs}
    assert world.ledger.ignored() == []
    world.store.refused.clear()
    world.run_until(10.0)
    assert {job.input.key for job in world.ledger.iter_open()} == {"in/a", *(f"in/{name}" for name in names)}
