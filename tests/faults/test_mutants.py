"""Every mutant has its folder, its run, its line in the README; every test that one needs exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.checker import COUNTS
from tests.faults.mutants import __main__ as mutants
from tests.faults.mutants.patching import swap
from tests.faults.options import choices
from tests.model.searching import MUTATIONS

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LINES = [line.split("#")[0].split() for line in (HERE / "mutants/mutants.txt").read_text().splitlines()]
ENTRIES = {line[0]: line[1:] for line in LINES if line}


def test_each_folder_is_run() -> None:
    folders = {path.parent.name for path in (HERE / "mutants").glob("*/sitecustomize.py")}
    assert folders == set(ENTRIES)


@pytest.mark.parametrize("name", ENTRIES)
def test_each_one_names_tests_that_exist_or_a_run_and_a_count(name: str) -> None:
    how, *rest = ENTRIES[name]
    if how == "test":
        assert rest
        for test in rest:
            file, _, function = test.partition("::")
            assert f"def {function}(" in (ROOT / file).read_text()
    else:
        assert how in COUNTS
        assert len(choices(rest)) == 1


def test_the_readme_tells_of_all() -> None:
    told = set(re.findall(r"^\| `([\w:-]+)` \|", (HERE / "README.md").read_text(), re.MULTILINE))
    assert told >= set(ENTRIES) | {f"model:{mutation.name}" for mutation in MUTATIONS}


def test_an_unknown_one_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert mutants.main(["no-such-thing"]) == 2
    assert "no-such-thing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "last", "noticed"),
    [
        (1, "FAILED tests/unit/test_a.py::test_a - assert 1 == 2", True),
        (1, "ERROR tests/unit/test_a.py::test_a - no weed (SeaweedFS) is installed", False),
        (2, "ERROR tests/unit/test_a.py - AttributeError: no such attribute", False),
        (0, "1 passed in 0.30s", False),
    ],
)
def test_only_a_test_that_fails_has_noticed(status: int, last: str, noticed: bool) -> None:
    assert mutants.failed(status, ["short test summary info", last]) is noticed


@pytest.mark.parametrize("name", ENTRIES)
def test_each_one_can_still_be_put_in_place(name: str) -> None:
    """Else its processes would break, and that would be taken for noticing it."""
    folder = HERE / "mutants"
    code = (
        "import importlib, re, sys\n"
        "import sitecustomize\n"
        "text = open(sitecustomize.__file__).read()\n"
        "names = re.findall(r'after_import\\(\"([\\w.]+)\"', text)\n"
        "assert names\n"
        "for name in names: importlib.import_module(name)\n"
    )
    env = {**os.environ, "PYTHONPATH": f"{folder / name}:{folder}:{ROOT}"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-500:]


def test_a_function_that_is_called_otherwise_is_no_mutant() -> None:
    class Honest:
        def publish(self, commit: int, *, fresh: bool = False) -> int:
            return commit

    with pytest.raises(SystemExit):
        swap(Honest, "publish", lambda self, commit: 0)
    with pytest.raises(SystemExit):
        swap(Honest, "publish", lambda self, *, fresh: 0)
    swap(Honest, "publish", lambda *_, **__: 0)
    swap(Honest, "publish", lambda *_, **__: 0)
