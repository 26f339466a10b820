"""`python -m tests.faults.mutants [NAME...]` (`make mutants`): run the lab without each protection.

A mutant that the lab does not notice means that the lab proves nothing there: exit status 1.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.faults.lab import run
from tests.faults.options import choices

HERE = Path(__file__).parent


def main(names: list[str]) -> int:
    survived = []
    for name, expected, arguments in _entries():
        if names and name not in names:
            continue
        [choice] = choices([*arguments, "--settle", "25", "--without", str(HERE / name)])
        result = run(choice, lambda sentence: None)
        found = {kind: len(said) for kind, said in result.verdict.found.items() if said}
        noticed = expected in found
        print(
            f"{name:<20} {'noticed' if noticed else 'SURVIVED':<9} {found or ''}  {result.choice.command()}", flush=True
        )
        if not noticed:
            survived.append(name)
    if survived:
        print(f"not noticed: {', '.join(survived)}")
    return 1 if survived else 0


def _entries() -> list[tuple[str, str, list[str]]]:
    found = []
    for line in (HERE / "mutants.txt").read_text().splitlines():
        name, *rest = line.split("#")[0].split() or [""]
        if name:
            found.append((name, rest[0], rest[1:]))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
