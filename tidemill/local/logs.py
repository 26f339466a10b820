"""The log file of a process: it writes there by itself, and the supervisor keeps the file small.

Copy and truncate: the process holds the file open for appending, so it goes on at the new end. A line or two that come
between the copy and the cut are lost; for that, no byte passes through the supervisor.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

CAP_BYTES = 10 * 2**20


@dataclass(frozen=True)
class LogFile:
    """At most `cap_bytes` (looked at now and then) in `path`, and as much of older text in `<path>.1`."""

    path: Path
    cap_bytes: int = CAP_BYTES

    def open(self) -> BinaryIO:
        """For appending, mode 0600."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return open(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab", buffering=0)

    def rotate(self) -> None:
        """Moves the text away when it has become too long."""
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            return
        if size <= self.cap_bytes:
            return
        older = self.path.with_name(self.path.name + ".1")
        try:
            with self.path.open("rb") as source, open(os.open(older, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as target:
                source.seek(max(0, size - self.cap_bytes))
                shutil.copyfileobj(source, target)
        except OSError:  # a full disk: then the text goes, so that there is room for what matters more
            older.unlink(missing_ok=True)
        os.truncate(self.path, 0)

    def size(self) -> int:
        """Bytes now: a mark for `tail`."""
        return self.path.stat().st_size if self.path.exists() else 0

    def tail(self, *, since: int = 0, most_bytes: int = 3000) -> str:
        """The end of what was written after the mark `since`."""
        if not self.path.exists():
            return ""
        with self.path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, since if since <= end else 0, end - most_bytes))
            return file.read(most_bytes).decode("utf-8", "replace")


def prune(folder: Path, keep: int) -> None:
    """Deletes all but the `keep` newest log files of a folder."""
    files = sorted(folder.glob("*.log"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in files[keep:]:
        path.unlink(missing_ok=True)
        path.with_name(path.name + ".1").unlink(missing_ok=True)
