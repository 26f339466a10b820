"""Results on their way into a folder.

Names come from functions, so each one is made safe, and a name that is taken gets a number: nothing that is there is
overwritten, and no result leaves the folder. The name is reserved by creating it exclusively, which follows no link.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path

from tidemill.client import Job, Output
from tidemill.client.output import safe_name


def save_all(outputs: Iterable[Output], folder: Path) -> list[Path]:
    """Save results under their own names into a folder, which is made if need be; give the paths in the same order."""
    folder.mkdir(parents=True, exist_ok=True)
    return [save(output, folder) for output in outputs]


def save(output: Output, folder: Path) -> Path:
    """Save one result under a free name."""
    for name in candidates(safe_name(output.name)):
        path = folder / name
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            continue
        try:
            return output.save(path)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    raise AssertionError("the numbers have no end")


def folder_for(job: Job, name: str, folder: Path, *, alone: bool) -> Path:
    """Give the folder of one job's results: `folder` itself, or one below it named after the input."""
    if alone:
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    for candidate in candidates(safe_name(name)):
        path = folder / candidate
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise AssertionError(f"no folder for {job.id}")


def candidates(name: str) -> Iterator[str]:
    """Give the name, then the same with -2, -3 and so on before its suffix."""
    yield name
    stem, dot, suffix = name.rpartition(".")
    for number in count(2):
        yield f"{stem}-{number}{dot}{suffix}" if stem else f"{name}-{number}"
