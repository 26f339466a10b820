"""The epoch, the rebuild, Flower's rows and the server's clock, over the twins in memory."""

from collections.abc import Iterable, Iterator

import pytest

from tidemill.errors import LedgerUnavailable
from tidemill.ledger.api import Claim, NewJob, PoolState, Token, Transition
from tidemill.models import (
    CancelRecord,
    CommitRecord,
    FunctionRecord,
    FunctionSpec,
    Job,
    JobError,
    JobInput,
    JobState,
    PoolSpec,
    RequestRecord,
)
from tidemill.record import Record
from tidemill.record.ending import End, finish
from tidemill.testing import MemoryLedger, MemoryStore
from tidemill_placement import assembly
from tidemill_placement.epoch import Deposed, EpochKeeper
from tidemill_placement.feeder import Feeder
from tidemill_placement.lead import Lead
from tidemill_placement.rebuild import Mirrors, rebuild
from tidemill_placement.relisting import Relisting
from tidemill_placement.servertime import ServerTime

SOURCE = JobInput(bucket="inbox", key="a.png", etag="e", size=3, last_modified=1)


def _id(number: int) -> str:
    return f"{number:032x}"


@pytest.fixture
def record() -> Record:
    found = Record(MemoryStore(), "tidemill")
    found.prepare()
    return found


def function(name: str = "ocr", deployed_at: float = 1.0) -> FunctionRecord:
    spec = FunctionSpec(name=name, handler="m:f")
    return FunctionRecord(spec=spec, revision="r1", deployed_at=deployed_at, triggers_since=0)


def ended(ledger: MemoryLedger, record: Record, number: int) -> None:
    """A job's whole life."""
    ledger.submit(NewJob(_id(number), "ocr", SOURCE, "r1"))
    claim = ledger.seize(_id(number), "test", 15.0)
    assert claim is not None
    finish(ledger, record, claim, None, End("failed", JobError(code="x")))


def keeper(ledger: MemoryLedger, record: Record) -> EpochKeeper:
    return EpochKeeper(ledger, record, lambda: rebuild(ledger, record))


def test_the_first_start_ever_begins_epoch_one_and_counts_on(record: Record) -> None:
    ledger = MemoryLedger()
    kept = keeper(ledger, record)
    assert kept.keep()
    assert ledger.epoch() == (1, 1)
    assert not kept.keep()
    assert ledger.epoch() == (1, 2)
    found = record.read_epoch()
    assert found is not None
    assert (found[0].epoch, found[0].sequence) == (1, 2)


def test_an_empty_redis_begins_the_next_epoch_and_gets_everything_back(record: Record) -> None:
    before = MemoryLedger()
    keeper(before, record).keep()
    record.put_function(function())
    record.put_function(function("gone").model_copy(update={"deleted_at": 5.0}))
    record.put_pool(PoolSpec(name="p"))
    record.put_pool(PoolSpec(name="drained"))
    record.drain_pool("drained", True)
    ended(before, record, 1)
    record.put_request(RequestRecord(job_id=_id(1), function="ocr", input=SOURCE, created_at=1))
    record.put_request(RequestRecord(job_id=_id(2), function="ocr", input=SOURCE, created_at=1, owner="a"))

    after = MemoryLedger()
    relisting = Relisting(after, record)
    assert EpochKeeper(after, record, lambda: relisting.add(rebuild(after, record).unlisted)).keep()
    assert after.epoch() == (2, 1)
    assert after.job(_id(1)) is None, "nobody waits for what is over"
    assert relisting.run() == 1
    assert set(after.functions()) == {"ocr"}
    assert {name: pool.draining for name, pool in after.pools().items()} == {"p": False, "drained": True}
    assert after.known([_id(1), _id(2), _id(3)]) == [True, True, False]
    over = after.job(_id(1))
    assert over is not None
    assert (over.state, over.error) == (JobState.failed, JobError(code="x"))
    waiting = after.job(_id(2))
    assert waiting is not None
    assert (waiting.state, waiting.owner) == (JobState.queued, "a")


def test_a_commit_without_a_manifest_is_published_by_the_rebuild(record: Record) -> None:
    ledger = MemoryLedger()
    ledger.begin_epoch(1, 1)
    job = Job(id=_id(7), function="ocr", revision="r1", state=JobState.running, input=SOURCE, created_at=1)
    claim = Claim(Token(_id(7), 1, 1, 1, "n"), job, 3, False)
    published, record.publish = record.publish, None  # type: ignore[method-assign,assignment]
    with pytest.raises(TypeError):
        finish(ledger, record, claim, None, End("failed", JobError(code="x")))
    record.publish = published  # type: ignore[method-assign]
    assert record.get_manifest("ocr", _id(7), 1) is None
    after = MemoryLedger()
    after.begin_epoch(2, 0)
    assert rebuild(after, record).published == 1
    assert record.get_manifest("ocr", _id(7), 1) is not None
    assert after.known([_id(7)]) == [True]
    assert [job.id for job in after.jobs(state=JobState.failed).jobs] == [_id(7)]


def test_a_redis_that_came_back_older_than_the_bucket_begins_a_new_epoch(record: Record) -> None:
    ledger = MemoryLedger()
    kept = keeper(ledger, record)
    for _ in range(4):
        kept.keep()
    old = MemoryLedger()
    old.begin_epoch(1, 2)
    assert keeper(old, record).keep()
    assert old.epoch() == (2, 1)


def test_a_restored_copy_is_noticed_by_a_leader_that_ran_on(record: Record) -> None:
    ledger = MemoryLedger()
    kept = keeper(ledger, record)
    for _ in range(4):
        kept.keep()
    ledger._epoch = (1, 1)
    assert kept.keep()
    assert ledger.epoch() == (2, 1)


def test_a_rebuild_that_broke_off_is_done_again_by_the_next_leader(record: Record) -> None:
    ledger = MemoryLedger()

    def breaks() -> None:
        raise OSError("killed")

    with pytest.raises(OSError, match="killed"):
        EpochKeeper(ledger, record, breaks).keep()
    assert ledger.epoch() == (1, 0)
    calls: list[int] = []
    assert EpochKeeper(ledger, record, lambda: calls.append(1)).keep()
    assert calls == [1]
    assert ledger.epoch() == (1, 1)


def test_a_leader_whose_epoch_object_was_written_by_another_one_steps_down(record: Record) -> None:
    ledger = MemoryLedger()
    kept = keeper(ledger, record)
    kept.keep()
    write = record.write_epoch

    def late(*args: object) -> str:
        keeper(ledger, record2).keep()
        return write(*args)  # type: ignore[arg-type]

    record2 = Record(record.store, "tidemill")
    record.write_epoch = late  # type: ignore[method-assign,assignment]
    with pytest.raises(Deposed):
        kept.keep()


@pytest.mark.parametrize("what", ["deploy", "delete"])
def test_a_deploy_or_delete_beside_the_rebuild_counts(
    record: Record, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    ledger = MemoryLedger()
    ledger.begin_epoch(1, 0)
    record.put_function(function())
    # The clock of the gateway that changes it is behind.
    later = function(deployed_at=0.5).model_copy(update={"revision": "r2"})
    change = later if what == "deploy" else function().model_copy(update={"deleted_at": 0.5})
    read, calls = record.functions, iter((1, 2))

    def beside() -> list[FunctionRecord]:
        found = read()
        if next(calls, 0) == 2:  # the list that the ledger is to get
            record.put_function(change)
            if what == "deploy":
                ledger.put_function(change)
            else:
                ledger.remove_function("ocr")
        return found

    monkeypatch.setattr(record, "functions", beside)
    rebuild(ledger, record)
    assert ledger.functions() == ({"ocr": change} if what == "deploy" else {})


def test_a_rebuild_gives_the_ledger_the_functions_of_the_bucket_and_no_others(record: Record) -> None:
    ledger = MemoryLedger()
    ledger.begin_epoch(1, 0)
    record.put_function(function(deployed_at=1.0))
    record.put_function(function("deleted").model_copy(update={"deleted_at": 2.0}))
    for name in ("ocr", "deleted", "unknown"):
        ledger.put_function(function(name, deployed_at=9.0))
    rebuild(ledger, record)
    assert ledger.functions() == {"ocr": function(deployed_at=1.0)}


def test_what_a_deploy_or_delete_that_broke_off_left_undone_in_the_ledger_is_done(record: Record) -> None:
    ledger = MemoryLedger()
    ledger.begin_epoch(1, 0)
    record.put_function(function("deployed"))
    record.put_function(function("deleted").model_copy(update={"deleted_at": 2.0}))
    ledger.put_function(function("deleted"))
    record.put_pool(PoolSpec(name="p"))
    ledger.put_pool(PoolSpec(name="gone"))
    mirrors = Mirrors(ledger, record)
    mirrors.complete()
    assert set(ledger.functions()) == {"deleted"}, "not beside a rebuild"
    ledger.advance(1, 1)
    mirrors.complete()
    assert (set(ledger.functions()), set(ledger.pools())) == ({"deployed"}, {"p"})
    version = ledger.version()
    mirrors.complete()
    assert ledger.version() == version


def test_records_are_read_for_the_mirrors_only_when_bucket_or_ledger_have_changed(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = MemoryLedger()
    ledger.begin_epoch(1, 1)
    record.put_function(function("ocr"))
    record.put_pool(PoolSpec(name="p"))
    mirrors = Mirrors(ledger, record)
    mirrors.complete()  # writes, and so
    mirrors.complete()  # looks once more
    get, read = record.store.get, []
    monkeypatch.setattr(
        record.store, "get", lambda bucket, key, **more: (read.append(key), get(bucket, key, **more))[1]
    )
    mirrors.complete()
    assert read == []
    ledger.put_function(function("ocr", deployed_at=9.0))  # late, by somebody who died then
    mirrors.complete()
    assert (ledger.functions(), bool(read)) == ({"ocr": function("ocr")}, True)
    record.put_pool(PoolSpec(name="q"))
    mirrors.complete()
    assert set(ledger.pools()) == {"p", "q"}
    record.delete_pool("q")
    mirrors.complete()
    assert set(ledger.pools()) == {"p"}
    record.put_function(function("ocr", deployed_at=3.0))
    mirrors.complete()
    assert ledger.functions() == {"ocr": function("ocr", deployed_at=3.0)}
    ledger.begin_epoch(2, 1)
    ledger.remove_function("ocr")
    mirrors.complete()
    assert set(ledger.functions()) == {"ocr"}


def test_a_damaged_record_is_read_in_each_round_until_it_is_whole(record: Record) -> None:
    ledger = MemoryLedger()
    ledger.begin_epoch(1, 1)
    record.put_function(function("ocr"))
    mirrors = Mirrors(ledger, record)
    get, broken = record.store.get, True
    record.store.get = lambda bucket, key, **more: b"{" if broken else get(bucket, key, **more)  # type: ignore[method-assign]
    for _ in range(3):
        mirrors.complete()
    assert ledger.functions() == {}
    broken = False
    mirrors.complete()
    assert set(ledger.functions()) == {"ocr"}


class Flower:
    """Collects what is sent."""

    def __init__(self) -> None:
        self.queues: frozenset[str] = frozenset()
        self.groups: list[list[Transition]] = []

    def listeners(self) -> frozenset[str]:
        return self.queues

    def send(self, transitions: Iterable[Transition]) -> int:
        self.groups.append(list(transitions))
        return len(self.groups[-1])


def test_flower_gets_every_line_once_and_all_again_when_it_restarts(record: Record) -> None:
    ledger = MemoryLedger()
    ledger.begin_epoch(1, 1)
    flower = Flower()
    feeder = Feeder(ledger, flower)
    ended(ledger, record, 1)
    flower.queues = frozenset({"a"})
    feeder.look()
    first = feeder.feed()
    assert first == len(ledger.transitions("0"))
    assert feeder.feed() == 0
    ended(ledger, record, 2)
    feeder.look()
    assert feeder.feed() == first
    flower.queues = frozenset({"b"})
    feeder.look()
    assert feeder.feed() == 2 * first


def test_a_flower_that_a_loss_of_redis_has_forgotten_gets_all_rows_of_the_new_epoch(record: Record) -> None:
    ledger = MemoryLedger()
    ledger.begin_epoch(1, 1)
    flower = Flower()
    feeder = Feeder(ledger, flower)
    ended(ledger, record, 1)
    feeder.look()
    first = feeder.feed()
    assert first == len(ledger.transitions("0")), "it is in no set, and listens all the same"
    ledger.begin_epoch(2, 1)
    feeder.look()
    assert feeder.feed() == first
    feeder.look()
    assert feeder.feed() == 0


def test_every_row_of_a_job_carries_the_summary_of_its_input(record: Record) -> None:
    ledger = MemoryLedger()
    ledger.begin_epoch(1, 1)
    flower = Flower()
    flower.queues = frozenset({"a"})
    feeder = Feeder(ledger, flower)
    ended(ledger, record, 1)
    feeder.look()
    feeder.feed()
    lines = [line for group in flower.groups for line in group]
    assert len(lines) > 1
    assert {line.summary for line in lines} == {lines[0].summary}
    assert "a.png" in lines[0].summary


def test_the_clock_follows_a_server_that_is_hours_off_and_ignores_milliseconds() -> None:
    clock = ServerTime(lambda: 1000.0)
    assert clock.now() == 1000.0
    clock.saw(999.9)
    assert clock.now() == 1000.0
    clock.saw(8200.0)
    clock.saw(8199.0)
    assert clock.now() == 8200.0


def test_a_leader_that_was_replaced_writes_no_epoch_and_deposes_nobody(record: Record) -> None:
    now = [1_700_000_000.0]
    ledger = MemoryLedger(lambda: now[0])
    first, second = Lead(ledger.acquire("placement", "first", 6.0)), Lead()
    old = EpochKeeper(ledger, record, lambda: rebuild(ledger, record), lead=first)
    new = EpochKeeper(ledger, record, lambda: rebuild(ledger, record), lead=second)
    assert old.keep()
    now[0] += 6.5
    second.fence = ledger.acquire("placement", "second", 6.0)
    assert not new.keep()
    before = record.read_epoch()
    with pytest.raises(Deposed):
        old.keep()
    assert record.read_epoch() == before and ledger.epoch() == (1, 2)
    assert not new.keep()


@pytest.mark.parametrize("what", ["new pool", "pool that is gone", "new function", "function that is gone"])
def test_the_rebuild_of_a_leader_that_was_replaced_mirrors_nothing(record: Record, what: str) -> None:
    now = [1_700_000_000.0]
    ledger = MemoryLedger(lambda: now[0])
    ledger.begin_epoch(2, 0)
    if what == "new pool":
        record.put_pool(PoolSpec(name="p"))
    elif what == "pool that is gone":
        ledger.put_pool(PoolSpec(name="p"))
    elif what == "new function":
        record.put_function(function())
    else:
        ledger.put_function(function())
        record.put_function(function().model_copy(update={"deleted_at": 5.0}))
    old = ledger.acquire("placement", "first", 6.0)
    now[0] += 6.5
    new = ledger.acquire("placement", "second", 6.0)
    before = ledger.pools(), ledger.functions()
    if what != "pool that is gone":
        with pytest.raises(LedgerUnavailable, match="not complete"):
            rebuild(ledger, record, old)
    else:
        rebuild(ledger, record, old)
    assert (ledger.pools(), ledger.functions()) == before
    rebuild(ledger, record, new)
    assert (ledger.pools(), ledger.functions()) != before


def test_a_leader_rebuilds_under_a_lease_that_this_redis_gave(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_700_000_000.0]
    ledger = MemoryLedger(lambda: now[0])
    ledger.begin_epoch(2, 0)
    record.put_pool(PoolSpec(name="p"))
    pools = record.pools

    def slow() -> list[PoolState]:
        now[0] += 6.5
        assert ledger.acquire("placement", "second", 6.0) is not None
        return pools()

    with monkeypatch.context() as patch:
        patch.setattr(record, "pools", slow)
        with pytest.raises(LedgerUnavailable, match="not complete"):
            assembly._rebuild(ledger, record, Relisting(ledger, record), "first", 6.0, 60.0)
    with pytest.raises(Deposed):
        assembly._rebuild(ledger, record, Relisting(ledger, record), "first", 6.0, 60.0)
    assert ledger.pools() == {}
    assembly._rebuild(ledger, record, Relisting(ledger, record), "second", 6.0, 60.0)
    assert set(ledger.pools()) == {"p"}


def test_a_result_that_is_committed_while_the_rebuild_reads_the_cancels_counts(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = MemoryLedger()
    ledger.begin_epoch(2, 0)
    facts = {"job_id": _id(1), "function": "ocr", "revision": "r1", "generation": 1, "input": SOURCE, "created_at": 1.0}
    wish = CancelRecord.model_validate({**facts, "by": "a", "asked_at": 2.0})
    result = {"outcome": "succeeded", "nonce": "n", "epoch": 1, "attempt": 1, "committed_at": 3.0}
    record.put_cancel(wish)
    cancels = record.cancels

    def late() -> Iterator[tuple[str, str, int]]:
        assert record.commit(CommitRecord.model_validate({**facts, **result}))[0]
        return cancels()

    monkeypatch.setattr(record, "cancels", late)
    rebuild(ledger, record)
    manifest = record.get_manifest("ocr", _id(1), 1)
    assert manifest is not None and manifest.state == "succeeded"
    assert ledger.known([_id(1)]) == [True]
