"""The agent's files around a runner, whatever a function does to them."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidemill_workers.agent.runner_files import place_input, remove_inputs, remove_tree


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "downloaded"
    path.write_bytes(b"input")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "in"
    path.mkdir()
    return path


def test_an_input_keeps_its_name_and_cannot_be_written(source: Path, folder: Path) -> None:
    placed = place_input(source, folder, "line\nbreak ä.txt", None)
    assert (placed.name, placed.read_bytes()) == ("line\nbreak ä.txt", b"input")
    assert placed.stat().st_mode & 0o777 == 0o444
    assert remove_inputs(folder)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", ["x" * 300 + ".png", "日本" * 100 + ".png", "..", ".", "", "a/..", "\0"])
def test_a_name_that_no_file_can_have_is_made_one(source: Path, folder: Path, name: str) -> None:
    placed = place_input(source, folder, name, None)
    assert placed.parent == folder and placed.read_bytes() == b"input"
    assert placed.suffix == (".png" if name.endswith(".png") else "")


def test_what_a_function_put_beside_its_input_is_told(source: Path, folder: Path) -> None:
    place_input(source, folder, "a.txt", None)
    (folder / "deep").mkdir()
    assert not remove_inputs(folder)


def test_closed_folders_are_opened_and_none_behind_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o500)
    tree = tmp_path / "tree"
    (tree / "closed").mkdir(parents=True)
    (tree / "closed" / "link").symlink_to(outside)
    (tree / "closed").chmod(0)
    real, calls = shutil.rmtree, iter([True])

    def fails_first(path: Path, onerror: Callable[..., Any]) -> None:
        """As for a user who is not root."""
        if next(calls, False):
            onerror(os.open, str(path), (PermissionError, PermissionError(), None))
        else:
            assert (tree / "closed").stat().st_mode & 0o777 == 0o700
            real(path, onerror=onerror)

    monkeypatch.setattr(shutil, "rmtree", fails_first)
    assert remove_tree(tree)
    assert not tree.exists() and outside.stat().st_mode & 0o777 == 0o500
