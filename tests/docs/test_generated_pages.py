"""The reference pages say what the code says."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
assert _spec is not None
assert _spec.loader is not None
generate = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(generate)
PAGES = list(generate.pages())


@pytest.mark.parametrize(("path", "text"), PAGES, ids=[path.name for path, _ in PAGES])
def test_a_generated_page_is_what_the_code_says(path: Path, text: str) -> None:
    assert path.read_text() == text, "run: python docs/generate.py"


def test_every_setting_says_what_it_does() -> None:
    for line in generate.settings_page().splitlines():
        if line.startswith("| `TIDEMILL_"):
            assert len(line.split("|")[3].strip()) > 10, line


def test_the_contract_names_of_a_job_are_in_its_schema() -> None:
    schema = json.loads((ROOT / "docs/reference/schemas/job.json").read_text())
    wanted = "id function revision generation state input params owner attempt pool agent batch created_at released_at"
    wanted += " started_at finished_at progress placement cost outputs error"
    assert set(wanted.split()) <= set(schema["properties"])
