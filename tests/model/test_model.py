"""The formal model of the delivery guarantee, searched to its end by `spin`.

Every execution of the model ends (the test of cycles says so), so what its `Judge` asks of all ends is a promise about
every run with these faults: the job is over, once, with complete outputs. Each mutation takes one protection out of the
model, and the search then has to find out what the protection is for.
"""

import os
from pathlib import Path

import pytest

from tests.model.searching import KEPT, MODEL, MUTATIONS, Mutation, Search, missing_tools, search


@pytest.fixture(autouse=True, scope="module")
def _tools() -> None:
    if missing := missing_tools():
        say = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        say(f"not installed: {', '.join(missing)} (Debian: apt-get install {' '.join(missing)})")


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


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_without_this_protection_the_search_finds_what_breaks(mutation: Mutation, tmp_path: Path) -> None:
    assert f"WITHOUT_{mutation.name}" in MODEL.read_text()
    assert mutation.noticed(tmp_path)


def test_a_copy_by_the_store_leaves_the_stated_window(tmp_path: Path) -> None:
    """A HEAD, then a copy without a condition: what comes in between is written over, as the page on delivery says."""
    found = search(tmp_path, "LARGE", "FOREIGNERS=1", "LOSSES=0", "FAULTS=0")
    assert KEPT in found.violated
