"""Failpoints: nothing without the setting, and exactly what it says with it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tidemill import failpoints
from tidemill.errors import LedgerUnavailable, StoreUnavailable
from tidemill.failpoints import Plan, failpoint, parse

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
from tidemill.failpoints import failpoint, now
for name in sys.argv[1:]:
    failpoint(name)
    print(name, flush=True)
"""


def run(rules: str, *names: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TIDEMILL_FAILPOINTS": rules}
    return subprocess.run([sys.executable, "-c", SCRIPT, *names], env=env, capture_output=True, text=True, check=False)


@pytest.fixture
def armed(monkeypatch: pytest.MonkeyPatch):
    def arm(rules: str) -> None:
        monkeypatch.setattr(failpoints, "_plan", Plan.of({"TIDEMILL_FAILPOINTS": rules}))
        monkeypatch.setattr(failpoints, "_active", True)

    return arm


def test_without_the_setting_nothing_happens() -> None:
    assert Plan.of({}) is None
    failpoint("a.b")


def test_kill_ends_the_process_at_the_named_place() -> None:
    done = run("c.d=kill", "a.b", "c.d", "e.f")
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == "a.b\n"


def test_a_rule_that_cannot_be_read_ends_the_process_at_its_start() -> None:
    done = run("a.b=explode", "a.b")
    assert done.returncode == 1
    assert "'a.b=explode' is no rule" in done.stderr


@pytest.mark.parametrize("text", ["a.b", "a.b=raise", "a.b=raise(disk)", "a.b=kill(1)", "a.b=delay", "a.b=kill@x"])
def test_half_rules_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse(text)


def test_raise_brings_the_error_of_a_server_that_does_not_answer(armed) -> None:
    armed("a.*=raise(store), b.c=raise(ledger)")
    with pytest.raises(StoreUnavailable):
        failpoint("a.x")
    with pytest.raises(LedgerUnavailable):
        failpoint("b.c")
    failpoint("b.d")


def test_a_count_is_spent_and_a_later_rule_follows(armed) -> None:
    armed("a.b=raise(store)#2, a.*=raise(ledger)#1")
    seen = []
    for _ in range(4):
        try:
            failpoint("a.b")
        except (StoreUnavailable, LedgerUnavailable) as error:
            seen.append(type(error))
    assert seen == [StoreUnavailable, StoreUnavailable, LedgerUnavailable]


def test_probability_is_a_share_of_the_hits(armed) -> None:
    armed("a.b=raise(store)@0.3")
    hits = 0
    for _ in range(1000):
        try:
            failpoint("a.b")
        except StoreUnavailable:
            hits += 1
    assert 200 < hits < 400


def test_a_file_of_rules_is_followed_while_the_process_runs(armed, tmp_path: Path) -> None:
    file = tmp_path / "rules"
    armed(f"@{file}")
    failpoint("a.b")
    file.write_text("a.b=raise(store)\n")
    with pytest.raises(StoreUnavailable):
        failpoint("a.b")
    file.unlink()
    failpoint("a.b")


def test_counts_of_a_file_hold_for_all_processes_together(tmp_path: Path) -> None:
    file = tmp_path / "rules"
    file.write_text("a.b=kill#2")
    codes = [run(f"@{file}", "a.b").returncode for _ in range(4)]
    assert codes == [-signal.SIGKILL, -signal.SIGKILL, 0, 0]
    marks = sorted(path.read_text().split()[:2] for path in (tmp_path / "rules.hits").iterdir())
    assert marks == [["a.b", "kill"], ["a.b", "kill"]]


def test_a_skewed_clock_is_off_by_so_much(armed) -> None:
    armed("clock=skew(-7200)")
    assert time.time() - 7201 < failpoints.now() <= time.time() - 7199


def test_each_failpoint_of_the_code_has_a_name_of_its_own() -> None:
    names: list[str] = []
    for folder in ("tidemill", "gateway", "placement", "workers"):
        for path in (ROOT / folder).rglob("*.py"):
            if path.name != "failpoints.py":
                names += re.findall(r'\bfailpoint\("([^"]*)"\)', path.read_text())
    assert len(names) > 20
    assert all(re.fullmatch(r"[a-z]+\.[a-z_]+", name) for name in names)
    assert len(set(names)) == len(names)
