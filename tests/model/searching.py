"""The searcher of the formal model, and the model's mutations: which protection, in which setting, and what breaks.

`test_model.py` and `make mutants` (`tests/faults/mutants`) use it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

MODEL = Path(__file__).with_name("delivery.pml")
MEMORY_MIB = 2000
DEPTH = 10_000

OVER = "(manifest!=0)"  # in the end there is a manifest, or the input went before any commit
COMPLETE = "((out[0]==commit)&&(out[1]==commit))"
KEPT = "(out[0]==10)"  # the user's own object stays
ATTEMPTS = "(attempt<=2)"
NOT_AGAIN = "!(known)"  # what was known to have ended never runs again
OF_THIS_LIFE = "(epoch==led.live)"  # only tokens of this epoch move the ledger


@dataclass(frozen=True)
class Search:
    """What `pan`, the searcher that spin writes, said."""

    errors: int
    violated: str
    complete: bool
    states: int
    text: str


@dataclass(frozen=True)
class Mutation:
    """A protection that `-DWITHOUT_<name>` takes out. `setting`: the smallest one in which its lack shows; `violated`:
    the assertion that must break there."""

    name: str
    setting: tuple[str, ...]
    violated: str

    def noticed(self, folder: Path) -> bool:
        """Search without the protection, in an empty folder: does the promise break where it must?"""
        found = search(folder, f"WITHOUT_{self.name}", *self.setting)
        return found.errors == 1 and self.violated in found.violated


MUTATIONS = (
    Mutation("CONDITIONAL_COMMIT", ("LOSSES=0", "FAULTS=1"), COMPLETE),
    Mutation("CONDITIONAL_OUTPUT", ("LOSSES=0", "FAULTS=0", "FOREIGNERS=1"), KEPT),
    Mutation("MANIFEST_LAST", ("LOSSES=0", "FAULTS=0"), COMPLETE),
    Mutation("MANIFEST_BEFORE_SETTLED", ("LOSSES=0", "FAULTS=1"), OVER),
    Mutation("TOKEN_CHECK", ("LOSSES=0", "FAULTS=3"), ATTEMPTS),
    Mutation("EPOCH_IN_TOKEN", ("RESTORE", "FAULTS=1"), OF_THIS_LIFE),
    Mutation("REFUSAL", ("FAULTS=0",), NOT_AGAIN),
    Mutation("LOOK_FIRST", ("LOSSES=0", "FAULTS=1"), NOT_AGAIN),
    Mutation("LOOK_IN_REBUILD", ("FAULTS=0",), NOT_AGAIN),
    Mutation("WAITING_FOR_SETTLED", ("FAULTS=0",), NOT_AGAIN),
    Mutation("LOOKING_FOR_FORGOTTEN", ("INPUT_GONE", "FAULTS=1"), OVER),
)


def missing_tools() -> list[str]:
    return [tool for tool in ("spin", "gcc") if shutil.which(tool) is None]


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
