"""The formal model of the delivery guarantee, searched to its end by `spin`.

Every execution of the model ends (the test of cycles says so), so what its `Judge` asks of all ends is a promise about
every run with these faults: the job is over, once, with complete outputs. Each mutation takes one protection out of the
model, and the search then has to find out what the protection is for.
"""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

MODEL = Path(__file__).with_name("delivery.pml")
MEMORY_MIB = 2000
DEPTH = 10_000

OVER = "(manifest!=0)"  # in the end there is a manifest, or the input went before any commit
COMPLETE = "((out[0]==commit)&&(out[1]==commit))"
KEPT = "(out[0]==10)"  # the user's own object stays
ATTEMPTS = "(attempt<=2)"
NOT_AGAIN = "!(known)"  # what was known to have ended never runs again
OF_THIS_LIFE = "(epoch==led.live)"  # only tokens of this epoch move the ledger


@pytest.fixture(autouse=True, scope="module")
def _tools() -> None:
    for tool in ("spin", "gcc"):
        if shutil.which(tool) is None:
            say = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
            say(f"{tool} is not installed (Debian: apt-get install {tool})")


@dataclass(frozen=True)
class Search:
    """What `pan`, the searcher that spin writes, said."""

    errors: int
    violated: str
    complete: bool
    states: int
    text: str


def search(folder: Path, *defines: str, cycles: bool = False) -> Search:
    flags = [f"-D{name}" for name in defines]
    _run(folder, "spin", *flags, "-a", str(MODEL))
    kind = "-DNP" if cycles else "-DSAFETY"
    _run(folder, "gcc", "-O2", "-w", kind, f"-DMEMLIM={MEMORY_MIB}", "-o", "pan", "pan.c")
    text = _run(folder, "./pan", f"-m{DEPTH}", *(["-l"] if cycles else []))
    errors, states = re.search(r"errors: (\d+)", text), re.search(r"(\d+) states, stored", text)
    assert errors is not None and states is not None, text
    violated = re.search(r"^pan:\d+: (.*) \(at depth", text, re.MULTILINE)
    broke_off = "Search not completed" in text or "max search depth too small" in text or "out of memory" in text
    return Search(int(errors[1]), violated[1] if violated else "", not broke_off, int(states[1]), text)


def _run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout + done.stderr


def holds(found: Search) -> bool:
    assert found.complete, found.text
    assert found.errors == 0, f"{found.violated}\n{found.text[-3000:]}"
    return True


@pytest.mark.slow
def test_two_agents_two_finishers_and_a_loss_of_redis_with_any_two_faults_end_in_one_complete_result(
    tmp_path: Path,
) -> None:
    found = search(tmp_path, "AGENTS=2", "FINISHERS=2", "LOSSES=1", "FAULTS=2")
    assert holds(found)
    assert found.states > 100_000


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(("LOSSES=0", "FAULTS=3"), id="three faults, Redis stays"),
        pytest.param(("RESTORE", "FAULTS=1", "FINISHERS=1"), id="an old copy of Redis"),
        pytest.param(("LOSSES=2", "FAULTS=1", "FINISHERS=1"), id="Redis lost twice, also in its rebuild"),
        pytest.param(("INPUT_GONE", "FAULTS=1"), id="the input goes"),
        pytest.param(("REQUEST", "INPUT_GONE", "FAULTS=1"), id="a request, and its payload goes"),
        pytest.param(("FOREIGNERS=1", "LOSSES=0", "FAULTS=2"), id="the user's own object under an output's key"),
        pytest.param(("LARGE", "FAULTS=1"), id="outputs that the store copies"),
    ],
)
def test_the_guarantee_holds(variant: tuple[str, ...], tmp_path: Path) -> None:
    assert holds(search(tmp_path, *variant))


def test_every_run_comes_to_an_end(tmp_path: Path) -> None:
    """No cycle at all: then whatever holds in each last state is what happens, with no assumption of fairness."""
    assert holds(search(tmp_path, "FAULTS=1", cycles=True))


def test_the_search_reaches_states_in_which_all_agents_and_finishers_work_at_once(tmp_path: Path) -> None:
    found = search(tmp_path, "NEVER_ALL_AT_ONCE", "FAULTS=2")
    assert "busy" in found.violated


@pytest.mark.parametrize(
    ("mutation", "setting", "violated"),
    [
        ("CONDITIONAL_COMMIT", ("LOSSES=0", "FAULTS=1"), COMPLETE),
        ("CONDITIONAL_OUTPUT", ("LOSSES=0", "FAULTS=0", "FOREIGNERS=1"), KEPT),
        ("MANIFEST_LAST", ("LOSSES=0", "FAULTS=0"), COMPLETE),
        ("MANIFEST_BEFORE_SETTLED", ("LOSSES=0", "FAULTS=1"), OVER),
        ("TOKEN_CHECK", ("LOSSES=0", "FAULTS=3"), ATTEMPTS),
        ("EPOCH_IN_TOKEN", ("RESTORE", "FAULTS=1"), OF_THIS_LIFE),
        ("REFUSAL", ("FAULTS=0",), NOT_AGAIN),
        ("LOOK_FIRST", ("LOSSES=0", "FAULTS=1"), NOT_AGAIN),
        ("LOOK_IN_REBUILD", ("FAULTS=0",), NOT_AGAIN),
        ("WAITING_FOR_SETTLED", ("FAULTS=0",), NOT_AGAIN),
        ("LOOKING_FOR_FORGOTTEN", ("INPUT_GONE", "FAULTS=1"), OVER),
    ],
)
def test_without_this_protection_the_search_finds_what_breaks(
    mutation: str, setting: tuple[str, ...], violated: str, tmp_path: Path
) -> None:
    assert f"WITHOUT_{mutation}" in MODEL.read_text()
    found = search(tmp_path, f"WITHOUT_{mutation}", *setting)
    assert found.errors == 1
    assert violated in found.violated


def test_a_copy_by_the_store_leaves_the_stated_window(tmp_path: Path) -> None:
    """A HEAD, then a copy without a condition: what comes in between is written over, as the page on delivery says."""
    found = search(tmp_path, "LARGE", "FOREIGNERS=1", "LOSSES=0", "FAULTS=0")
    assert KEPT in found.violated
