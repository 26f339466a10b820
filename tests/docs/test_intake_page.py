"""The table of ignored objects says what the rules say."""

import re
from pathlib import Path

import pytest

from tidemill.models import Trigger
from tidemill.store.signed import error_of
from tidemill_gateway.intake import rules

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "intake.md"
_ROW = re.compile(r"^\| ([^|]+) \| `([^`]+)` \| (\d+) \| (.+) \|$", re.MULTILINE)
ROWS = _ROW.findall(PAGE.read_text())
_TRIGGER = Trigger(bucket="inbox", prefix="in/", max_size=1000)


def _said(key: str, size: int, what: str) -> str | None:
    by_hop = rules.ignored_hop(9, 8) if what.startswith("results that went round") else None
    if what.startswith("objects that the store refuses"):
        return rules.refused(error_of(403, "inbox/in/denied.jpg", "HEAD inbox/in/denied.jpg: 403"))
    limit = _TRIGGER if what.startswith("objects above") else Trigger(bucket="inbox", prefix="in/")
    return rules.ignored_name(key) or rules.ignored_size(size, limit) or by_hop


@pytest.mark.parametrize(("what", "key", "size", "reason"), ROWS, ids=[row[1] for row in ROWS])
def test_an_example_is_ignored_for_the_reason_that_the_page_names(what: str, key: str, size: str, reason: str) -> None:
    assert _said(key, int(size), what) == reason.replace("\\*", "*")


def test_every_rule_has_an_example() -> None:
    reasons = "\n".join(row[3] for row in ROWS)
    for ending in rules.ENDINGS:
        assert f"temporary name: *{ending}\n" in reasons + "\n"
    words = ("folder marker", "hidden name", "thumbs.db", "~$*", "*.partial*", "empty", "too large", "loop guard")
    for word in (*words, "not readable"):
        assert word in reasons
