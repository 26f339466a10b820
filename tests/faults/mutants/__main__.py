"""`python -m tests.faults.mutants [NAME...]` (`make mutants`): look without each protection, and be told.

Three kinds, as `mutants.txt` and `tests/model/searching.py` list them: runs of the fault lab, single tests, and
searches of the formal model. A mutant that nothing notices means that nothing is proved there: exit status 1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.faults.lab import run
from tests.faults.options import choices
from tests.model.searching import MUTATIONS, Mutation, missing_tools

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
_FAILED = 1  # pytest's status when tests ran, and one failed or could not begin
_TEST_S = 600.0


def main(names: list[str]) -> int:
    mutants = dict(_mutants())
    if unknown := set(names) - set(mutants):
        print(f"unknown: {', '.join(sorted(unknown))}; there are: {', '.join(mutants)}", file=sys.stderr)
        return 2
    survived = []
    for name in names or mutants:
        noticed, said = mutants[name]()
        print(f"{name:<30} {'noticed' if noticed else 'SURVIVED':<9} {said}", flush=True)
        if not noticed:
            survived.append(name)
    if survived:
        print(f"not noticed: {', '.join(survived)}")
    return 1 if survived else 0


Trial = Callable[[], tuple[bool, str]]


def _mutants() -> Iterator[tuple[str, Trial]]:
    for line in (HERE / "mutants.txt").read_text().splitlines():
        name, *rest = line.split("#")[0].split() or [""]
        if name and rest[0] == "test":
            yield name, lambda name=name, tests=rest[1:]: _tests(name, tests)
        elif name:
            yield name, lambda name=name, rest=rest: _lab(name, rest[0], rest[1:])
    for mutation in MUTATIONS:
        yield f"model:{mutation.name}", lambda mutation=mutation: _model(mutation)


def _lab(name: str, expected: str, arguments: list[str]) -> tuple[bool, str]:
    [choice] = choices([*arguments, "--settle", "25", "--without", str(HERE / name)])
    result = run(choice, lambda sentence: None)
    if result.folder is not None:  # kept, since something was violated: here that is what was wanted
        shutil.rmtree(result.folder, ignore_errors=True)
    found = {kind: len(said) for kind, said in result.verdict.found.items() if said}
    return expected in found, f"{found or 'nothing'}  {choice.command()}"


def _tests(name: str, tests: list[str]) -> tuple[bool, str]:
    told = []
    for test in tests:
        noticed, said = _test(name, test)
        if not noticed:
            return False, said
        told.append(said)
    return True, "; ".join(told)


def _test(name: str, test: str) -> tuple[bool, str]:
    env = {**os.environ, "PYTHONPATH": f"{HERE / name}:{HERE}"}
    argv = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test]
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=_TEST_S)
    lines = done.stdout.splitlines()
    said = [line[1:].strip() for line in lines if line.startswith("E ")] or lines[-1:]
    return failed(done.returncode, lines), f"{test.rpartition('::')[2]}: {' '.join(said[:1])[:160]}"


def failed(status: int, lines: list[str]) -> bool:
    """Whether a run of pytest says that a test failed, not only that one could not begin: a server was missing, say."""
    return status == _FAILED and any(line.startswith("FAILED ") for line in lines)


def _model(mutation: Mutation) -> tuple[bool, str]:
    if missing := missing_tools():
        return False, f"not installed: {', '.join(missing)}"
    with tempfile.TemporaryDirectory(prefix="tidemill-model-") as folder:
        return mutation.noticed(Path(folder)), f"{' '.join(mutation.setting)}: {mutation.violated}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
