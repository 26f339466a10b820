"""A seed is a plan: the same one each time, another one for another seed, and of the chosen kinds only."""

from __future__ import annotations

import pytest

from tests.faults import schedule
from tests.faults.options import choices

KINDS = list(schedule.WEIGHTS)


def test_the_same_seed_gives_the_same_faults_and_files() -> None:
    assert schedule.faults(7, KINDS, 600, 2, 4) == schedule.faults(7, KINDS, 600, 2, 4)
    assert schedule.drops(7, 200, 60) == schedule.drops(7, 200, 60)


def test_another_seed_gives_other_ones() -> None:
    assert schedule.faults(7, KINDS, 600, 2, 4) != schedule.faults(8, KINDS, 600, 2, 4)
    assert schedule.drops(7, 200, 60) != schedule.drops(8, 200, 60)


def test_only_the_chosen_kinds_come_and_each_of_them() -> None:
    found = schedule.faults(1, ["redis", "kill"], 600, 2, 4)
    assert {fault.kind for fault in found} == {"redis", "kill"}
    assert {fault.what for fault in found if fault.kind == "redis"} == set(schedule.KINDS["redis"])
    assert all(schedule.FIRST_S <= fault.at_s < 600 for fault in found)


def test_every_kind_of_fault_has_its_turn() -> None:
    found = schedule.faults(1, KINDS, 3600, 1, 4)
    assert {(fault.kind, fault.what) for fault in found} == {
        (kind, what) for kind in schedule.WEIGHTS for what in schedule.KINDS[kind]
    }


def test_files_come_in_all_ways_and_all_within_the_time() -> None:
    found = schedule.drops(3, 400, 60)
    assert [drop.number for drop in found] == list(range(400))
    assert {drop.way for drop in found} == {"put", "presigned", "call", "named"}
    assert {drop.twist for drop in found} == {"", "again", "cancel", "retry", "overwrite", "delete"}
    assert all(0 <= drop.at_s <= 60 for drop in found)


def test_a_run_says_the_command_that_repeats_it() -> None:
    [choice] = choices(["--seed", "5", "--jobs", "30", "--minutes", "0.5", "--faults", "kill,redis"])
    assert choices(choice.command().split()[3:]) == [choice]


def test_several_seeds_are_several_runs() -> None:
    assert [choice.seed for choice in choices(["--seeds", "3-5"])] == [3, 4, 5]


def test_an_unknown_fault_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        choices(["--faults", "kill,flood"])
    assert ended.value.code == 2
    assert "there is no fault flood" in capsys.readouterr().err


def test_single_faults_and_places_may_be_chosen() -> None:
    found = schedule.faults(1, ["redis:flush", "redis:kill", "failpoints:kill:ending.committed"], 600, 2, 4)
    assert {(fault.kind, fault.what, fault.facts.get("place")) for fault in found} == {
        ("redis", "flush", None),
        ("redis", "kill", None),
        ("failpoints", "kill", "ending.committed"),
    }
