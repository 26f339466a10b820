"""The parts of the sample generator that need no picture library: names, numbers, files of other kinds."""

from __future__ import annotations

import io
import json
import re
import sys
import unicodedata
import zipfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from random import Random
from types import ModuleType

import pytest

_FOLDER = Path(__file__).parents[2] / "examples" / "samples"
_ROOMS = ("names", "trade", "othertypes")


@pytest.fixture
def rooms(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    monkeypatch.syspath_prepend(str(_FOLDER))
    yield {name: import_module(name) for name in _ROOMS}
    for name in _ROOMS:
        sys.modules.pop(name, None)


def test_odd_names_fit_a_folder_and_none_is_one_that_intake_ignores(rooms: dict[str, ModuleType]) -> None:
    stems = rooms["names"].ODD_STEMS
    assert len(set(stems)) == len(stems)
    for stem in stems:
        assert len(f"{stem} 2.jpeg".encode()) <= 255
        assert "/" not in stem
        assert not stem.startswith(".")


def test_odd_names_hold_the_same_word_composed_and_decomposed(rooms: dict[str, ModuleType]) -> None:
    stems = rooms["names"].ODD_STEMS
    composed = [stem for stem in stems if unicodedata.normalize("NFC", stem) != unicodedata.normalize("NFD", stem)]
    pairs = [stem for stem in composed if unicodedata.normalize("NFD", stem) in stems and stem in stems]
    assert len({unicodedata.normalize("NFC", stem) for stem in pairs}) < len(set(pairs))


@pytest.mark.parametrize("country", ["CH", "DE", "GB", "FR", "NL", "IT"])
def test_account_numbers_have_right_check_digits(rooms: dict[str, ModuleType], country: str) -> None:
    for seed in range(20):
        account = rooms["trade"].iban(Random(seed), country).replace(" ", "")
        assert re.fullmatch(country + r"\d\d[A-Z0-9]+", account)
        turned = account[4:] + account[:4]
        assert int("".join(str(int(char, 36)) for char in turned)) % 97 == 1


def test_files_of_other_kinds_are_what_they_claim(rooms: dict[str, ModuleType]) -> None:
    files = {label: content for _, content, label in rooms["othertypes"].files(Random(1))}
    assert len(files) == 12
    assert json.loads(files["json"])[0]["ware"]
    compile(files["python"], "script", "exec")
    assert zipfile.ZipFile(io.BytesIO(files["zip"])).testzip() is None
    assert files["sqlite"].startswith(b"SQLite format 3\0")
    assert files["wav"][:4] == b"RIFF"


def test_the_pdf_points_to_its_objects(rooms: dict[str, ModuleType]) -> None:
    content = rooms["othertypes"].pdf(["one line"])
    start = int(content.rsplit(b"startxref\n", 1)[1].split()[0])
    assert content[start:].startswith(b"xref")
    for number, place in enumerate(re.findall(rb"(\d{10}) 00000 n", content), 1):
        assert content[int(place) :].startswith(b"%d 0 obj" % number)


def test_the_same_seed_gives_the_same_files(rooms: dict[str, ModuleType]) -> None:
    make = rooms["othertypes"].files
    assert make(Random(5)) == make(Random(5))
    assert make(Random(5)) != make(Random(6))
