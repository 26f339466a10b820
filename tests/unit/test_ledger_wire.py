"""How values look inside Redis."""

from tidemill.ledger import wire
from tidemill.ledger.api import Ended, Memory, NewJob
from tidemill.models import JobError, JobInput


def job(key: str) -> NewJob:
    return NewJob("ab" * 16, "ocr", JobInput(bucket="scans", key=key, etag="e", size=1), "r")


def test_a_summary_is_at_most_120_characters_and_keeps_the_end_of_the_key() -> None:
    assert wire.summary_of(job("a.png").input) == "scans/a.png"
    exact = "x" * (120 - len("scans/"))
    assert wire.summary_of(job(exact).input) == f"scans/{exact}"
    cut = wire.summary_of(job(exact + "tail.png").input)
    assert len(cut) == 120 and cut.startswith("scans/…x") and cut.endswith("tail.png")


def test_an_error_is_one_short_line() -> None:
    assert wire.error_line(None) == ""
    assert wire.error_line(JobError(code="timeout")) == "timeout"
    assert wire.error_line(JobError(code="x", message="two\n  lines")) == "x: two lines"
    assert len(wire.error_line(JobError(code="x", message="m" * 999))) == 200


def test_times_keep_their_microseconds() -> None:
    assert wire.micros(1_800_000_000.123456) == 1_800_000_000_123_456
    assert wire.seconds("1800000000123456") == 1_800_000_000.123456
    assert wire.seconds(None) is None


def test_only_what_differs_from_the_defaults_takes_memory() -> None:
    assert wire.spec_of(job("a")) == '{"input":{"bucket":"scans","key":"a","etag":"e","size":1},"revision":"r"}'
    assert wire.end_of(Ended("succeeded")) == '{"state":"succeeded","usd":0.0,"gpu_seconds":0.0,"run_s":0.0}'


def test_memory_is_full_above_four_fifths_of_a_limit() -> None:
    assert not Memory(used=10**12, limit=0).full
    assert not Memory(used=80, limit=100).full
    assert Memory(used=81, limit=100).full
