"""A disk of its own for a test, that becomes full and gets room again at once, whatever lies there.

It is a tmpfs whose size is set anew, so a full one costs no memory. Mounting needs root.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SIZE_BYTES = 8 * 2**30  # of a file system, not of memory: SeaweedFS makes as many volumes as would fit


class CannotMount(Exception):
    """This process may not mount anything."""


@dataclass(frozen=True)
class Disk:
    """A mounted file system below `path`."""

    path: Path

    def fill(self) -> None:
        """From now on no write finds a free block."""
        for _ in range(20):
            if self._resize(self.used_bytes()):  # fails when more was written in between
                return
        raise RuntimeError(f"{self.path} grows too fast to be filled")

    def clear(self) -> None:
        """There is room again."""
        if not self._resize(SIZE_BYTES):
            raise RuntimeError(f"{self.path} could not be made larger")

    def used_bytes(self) -> int:
        facts = os.statvfs(self.path)
        return max(1, facts.f_blocks - facts.f_bfree) * facts.f_frsize

    def _resize(self, size_bytes: int) -> bool:
        argv = ["mount", "-o", f"remount,size={size_bytes}", str(self.path)]
        return subprocess.run(argv, capture_output=True).returncode == 0

    def unmount(self) -> None:
        """Also when somebody still has files open there."""
        subprocess.run(["umount", "-l", str(self.path)], check=True, capture_output=True)


def mount(path: Path) -> Disk:
    """Put an empty file system there, with mode 0755.

    Raises:
        CannotMount: not root, or root without this right.
    """
    argv = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES},mode=0755", "tidemill-test", str(path)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise CannotMount("there is no `mount`") from error
    if done.returncode != 0:
        raise CannotMount(f"a disk that becomes full needs the right to mount: {done.stderr.strip()}")
    return Disk(path)


@contextlib.contextmanager
def mounted(path: Path) -> Iterator[Disk]:
    """A disk while the block runs. Raises `CannotMount`."""
    disk = mount(path)
    try:
        yield disk
    finally:
        disk.unmount()
