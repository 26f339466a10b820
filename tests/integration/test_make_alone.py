"""Two `make` at once in one checkout install its packages one after the other."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.support import wait_until

ROOT = Path(__file__).parents[2]
TAKE_TURNS = """
import sys
with open(sys.argv[1], "a", buffering=1) as lines:
    lines.write("in\\n")
    sys.stdin.read()
    lines.write("out\\n")
"""


def test_a_second_install_waits_for_the_first_one(tmp_path: Path) -> None:
    checkout = tmp_path / "a checkout"
    (checkout / "requirements").mkdir(parents=True)
    (checkout / "Makefile").write_text("")
    alone = shutil.copy(ROOT / "requirements" / "alone.py", checkout / "requirements")
    command = [sys.executable, str(alone), sys.executable, "-c", TAKE_TURNS, str(tmp_path / "lines")]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as one:
        lines = tmp_path / "lines"
        wait_until(lambda: lines.exists() and lines.read_text() == "in\n", 30)
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            assert "waiting for it" in other.stdout.readline()
            assert lines.read_text() == "in\n"
            assert one.stdin is not None
            one.stdin.close()
    assert [one.returncode, other.returncode] == [0, 0]
    assert lines.read_text().split() == ["in", "out", "in", "out"]


def test_every_target_that_installs_does_it_alone() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in ("demo", "test", "lint", "bench"):
        recipe = makefile.split(f"\n{target}:", 1)[1].split("\n\n")[0].splitlines()
        assert "$(VENV)" not in recipe[0], f"{target} installs before it has the lock"
        assert recipe[1].startswith("\t@$(ALONE) $(MAKE)"), target
