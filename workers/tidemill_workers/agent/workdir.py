"""The work folder of an agent: inputs, outputs, code and runners of its life, and nothing after it.

Each agent locks its folder for as long as it lives. An agent that was killed cannot clean up, so each new one removes
the folders beside its own whose lock nobody holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "tidemill-agent-"
_LOCK = ".lock"


@contextlib.contextmanager
def work_folder(parent: Path | None) -> Iterator[Path]:
    """Give a fresh folder below `parent` (default: the system's temporary folder), removed at the end.

    It is readable for other users, because functions run as one of them where that is possible.
    """
    base = parent or Path(tempfile.gettempdir())
    base.mkdir(parents=True, exist_ok=True)
    remove_leftovers(base)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
    lock = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder.chmod(0o755)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_leftovers(base: Path) -> int:
    """Remove the folders of dead agents. Gives their number."""
    removed = 0
    for folder in base.glob(_PREFIX + "*"):
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            continue
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # being made or being removed
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        else:
            shutil.rmtree(folder, ignore_errors=True)
            removed += 1
        finally:
            os.close(lock)
    return removed
