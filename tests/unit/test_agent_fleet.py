"""The fleet lends runners: warm ones first, never more than slots, and makes idle ones what placement wants."""

from __future__ import annotations

import threading

import pytest

from tests.support import wait_until
from tidemill.models import FunctionRecord, FunctionSpec
from tidemill_workers.agent.fleet import Fleet, FleetClosed


class FakeRunner:
    """Stands for a runner process; it only counts."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True

    def start(self) -> None:
        self.alive = True

    def stop(self, grace_s: float = 1.0) -> None:
        self.alive = False


def record(name: str, revision: str = "r1") -> FunctionRecord:
    spec = FunctionSpec(name=name, handler="a:b")
    return FunctionRecord(spec=spec, revision=revision, deployed_at=0, triggers_since=0)


class Maker:
    def __init__(self) -> None:
        self.made: list[FakeRunner] = []
        self.fail = False

    def __call__(self, function: FunctionRecord) -> FakeRunner:
        if self.fail:
            raise RuntimeError("no start")
        runner = FakeRunner(f"{function.name}@{function.revision}")
        self.made.append(runner)
        return runner


@pytest.fixture
def maker() -> Maker:
    return Maker()


def test_a_second_job_of_the_same_revision_gets_the_warm_runner(maker: Maker) -> None:
    fleet = Fleet(2, maker)
    with fleet.lend(record("a")) as first:
        assert fleet.busy == 1
    with fleet.lend(record("a")) as second:
        assert second is first
    assert len(maker.made) == 1


def test_another_revision_never_gets_a_runner_of_the_old_one(maker: Maker) -> None:
    fleet = Fleet(2, maker)
    with fleet.lend(record("a", "r1")):
        pass
    with fleet.lend(record("a", "r2")) as runner:
        assert runner.name == "a@r2"


def test_the_longest_idle_runner_makes_room_for_another_function(maker: Maker) -> None:
    fleet = Fleet(1, maker)
    with fleet.lend(record("a")):
        pass
    with fleet.lend(record("b")) as runner:
        assert runner.name == "b@r1"
    assert not maker.made[0].alive
    assert len(fleet.reports()) == 1


def test_a_borrower_waits_until_a_slot_is_free(maker: Maker) -> None:
    fleet = Fleet(1, maker)
    got = threading.Event()

    def second() -> None:
        with fleet.lend(record("a")):
            got.set()

    with fleet.lend(record("a")):
        thread = threading.Thread(target=second)
        thread.start()
        assert not got.wait(0.1)
    assert got.wait(5)
    thread.join()
    assert len(maker.made) == 1


def test_a_dead_runner_is_replaced(maker: Maker) -> None:
    fleet = Fleet(1, maker)
    with fleet.lend(record("a")) as runner:
        runner.alive = False
    with fleet.lend(record("a")) as runner:
        assert runner.alive
    assert len(maker.made) == 2


def test_a_failed_start_frees_its_slot(maker: Maker) -> None:
    fleet = Fleet(1, maker)
    maker.fail = True
    with pytest.raises(RuntimeError), fleet.lend(record("a")):
        pytest.fail("nothing to lend")
    assert fleet.reports() == ()
    maker.fail = False
    with fleet.lend(record("a")) as runner:
        assert runner.alive


def test_a_revision_that_does_not_start_is_tried_again_ever_later(maker: Maker) -> None:
    now = 0.0
    tries = 0

    def make(function: FunctionRecord) -> FakeRunner:
        nonlocal tries
        tries += 1
        return maker(function)

    fleet = Fleet(1, make, clock=lambda: now)
    maker.fail = True
    counts = []
    for tenth in range(80):
        now = tenth / 10
        fleet.adjust({"a@r1": 1}, record)
        wait_until(lambda: fleet.busy == 0, 5)
        counts.append(tries)
    assert [counts.index(n) / 10 for n in (1, 2, 3, 4)] == [0.0, 1.0, 3.0, 7.0]
    with pytest.raises(RuntimeError), fleet.lend(record("a")):
        pass
    maker.fail = False
    with fleet.lend(record("a")):
        pass
    with fleet.lend(record("b")):
        pass
    fleet.adjust({"a@r1": 1}, record)
    wait_until(lambda: [runner.function for runner in fleet.reports()] == ["a"], 5)


def test_unwanted_idle_runners_stop_and_wanted_ones_start(maker: Maker) -> None:
    functions = {"a": record("a"), "b": record("b")}
    fleet = Fleet(2, maker)
    with fleet.lend(functions["a"]):
        fleet.adjust({}, functions.get)
        assert maker.made[0].alive, "a lent runner is not touched"
    fleet.adjust({"b@r1": 2}, functions.get)
    wait_until(lambda: [r.slots for r in fleet.reports() if r.function == "b" and not r.busy] == [2], 5)
    assert not maker.made[0].alive
    fleet.adjust({"b@r1": 2}, functions.get)
    assert len(maker.made) == 3, "a repeated wish starts nothing"
    fleet.adjust({"b@old": 2}, functions.get)
    assert fleet.reports() == ()


def test_more_wanted_than_slots_starts_only_what_fits(maker: Maker) -> None:
    fleet = Fleet(2, maker)
    fleet.adjust({"a@r1": 5}, lambda _: record("a"))
    wait_until(lambda: not fleet.busy, 5)
    assert sum(report.slots for report in fleet.reports()) == 2


def test_closing_ends_waits_and_stops_runners(maker: Maker) -> None:
    fleet = Fleet(1, maker)
    failed = threading.Event()

    def waiter() -> None:
        try:
            with fleet.lend(record("b")):
                pass
        except FleetClosed:
            failed.set()

    with fleet.lend(record("a")) as runner:
        thread = threading.Thread(target=waiter)
        thread.start()
        fleet.close()
        assert failed.wait(5)
        thread.join()
        assert not runner.alive


def test_giving_up_ends_a_wait(maker: Maker) -> None:
    fleet = Fleet(1, maker)
    with fleet.lend(record("a")):
        with pytest.raises(FleetClosed), fleet.lend(record("b"), give_up=lambda: True):
            pytest.fail("the slot is taken")
