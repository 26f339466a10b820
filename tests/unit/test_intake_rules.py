"""The written rules of what is no job."""

import pytest

from tidemill.models import FunctionRecord, FunctionSpec, Trigger
from tidemill_gateway.intake import rules


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("in/", "folder marker"),
        ("in/.DS_Store", "hidden"),
        ("in/._photo.jpg", "hidden"),
        (".hidden", "hidden"),
        ("in/Thumbs.db", "thumbs.db"),
        ("in/~$report.docx", "~$*"),
        ("in/a.TMP", "*.tmp"),
        ("a.part", "*.part"),
        ("a.part.minio", "*.part.minio"),
        ("a.filepart", "*.filepart"),
        ("a.crdownload", "*.crdownload"),
        ("a.swp", "*.swp"),
        ("a.partial-1", "*.partial*"),
    ],
)
def test_a_name_that_a_rule_names_is_ignored_with_the_reason(key: str, said: str) -> None:
    assert said in (rules.ignored_name(key) or "")


@pytest.mark.parametrize(
    "key", ["a b.jpg", "in/.folder/a.jpg", "tmp", "a.tmp.jpg", "part", "x~$y", "emoji😀.bin", "a..b", "a/…/b", " "]
)
def test_other_names_are_jobs(key: str) -> None:
    assert rules.ignored_name(key) is None


def test_an_empty_object_waits_and_a_large_one_is_refused_by_its_trigger() -> None:
    trigger = Trigger(bucket="inbox", max_size=10)

    assert "until it has content" in (rules.ignored_size(0, trigger) or "")
    assert rules.ignored_size(10, trigger) is None
    assert "at most 10" in (rules.ignored_size(11, trigger) or "")
    assert rules.ignored_size(2**40, Trigger(bucket="inbox")) is None


def test_the_hop_count_stops_a_loop_and_foreign_metadata_counts_as_none() -> None:
    assert rules.ignored_hop(8, 8) is None
    assert "9 is above 8" in (rules.ignored_hop(9, 8) or "")
    assert [rules.hop_of(text) for text in ("3", None, "", "-1", "x", "²", "9" * 40)] == [3, 0, 0, 0, 0, 0, 0]


def test_an_object_of_the_second_in_which_the_trigger_began_is_not_too_old() -> None:
    trigger = Trigger(bucket="inbox", prefix="in/")
    spec = FunctionSpec(name="echo", handler="w:f", trigger=(trigger,))
    record = FunctionRecord(spec=spec, revision="r", deployed_at=0.0, triggers_since=100.9)
    assert record.takes(trigger, "in/a", 100)
    assert not record.takes(trigger, "in/a", 99)


def test_below_a_replayed_place_the_age_of_an_object_does_not_count() -> None:
    trigger = Trigger(bucket="inbox", prefix="in/")
    spec = FunctionSpec(name="echo", handler="w:f", trigger=(trigger,))
    record = FunctionRecord(
        spec=spec, revision="r", deployed_at=0.0, triggers_since=100.0, replayed=("inbox/in/2025", "other/")
    )
    taken = [key for key in ("in/2025-01", "in/2026-01", "in/2025") if record.takes(trigger, key, 5)]
    assert taken == ["in/2025-01", "in/2025"]


def test_a_key_that_a_store_may_know_under_another_name_is_left_to_the_listing() -> None:
    assert all(rules.plain(key) for key in ("a", "a/b", "a/b/", "a/.b/..c", " "))
    assert not any(rules.plain(key) for key in ("/a", "a//b", "a/./b", "a/../b", "..", "a//", ""))
