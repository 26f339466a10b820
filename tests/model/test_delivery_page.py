"""The page on delivery names tests and switches that exist."""

import re
from pathlib import Path

from tests.model.searching import MUTATIONS

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs/explanation/delivery.md"


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    there = {name for file in TESTS.rglob("test_*.py") for name in re.findall(r"def (test_\w+)", file.read_text())}
    assert len(named) > 20
    assert named <= there, named - there


def test_the_page_tells_of_every_switch_of_the_model() -> None:
    switch = r"WITHOUT_[A-Z_]*[A-Z]"
    in_model = set(re.findall(switch, (TESTS / "model/delivery.pml").read_text()))
    assert set(re.findall(switch, PAGE.read_text())) == in_model
    assert {f"WITHOUT_{mutation.name}" for mutation in MUTATIONS} == in_model
