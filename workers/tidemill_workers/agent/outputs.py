"""What a function left in its output folder, read so that the function cannot make us publish anything else.

The folder is hostile ground: its writer may still run, and may swap a file for a link between our look and our open.
So every step opens one name relative to an open folder, never following a link, and asks the opened file, not the
path, what it is. Only regular files that belong to the folder's owner count: where functions run as another user, a
hard link to a file of ours is not theirs. What is left out is listed with its reason.
"""

from __future__ import annotations

import mimetypes
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a fifo put in a file's place must not make the open wait for a writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_DEPTH = 60
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class OutputRefused(Exception):
    """The output folder or a file in it is not what it was, or not what may be published."""


class TooManyOutputs(OutputRefused):
    """The function left more files than one job may publish."""


@dataclass(frozen=True)
class OutputFile:
    """One output. `name` is its path below the output folder, with `/`; `size` in bytes as it was when it was found."""

    name: str
    size: int
    content_type: str
    output_dir: Path

    def open(self) -> BinaryIO:
        """The content; the caller closes it. Raises OutputRefused when the file was swapped for something else
        since."""
        *folders, last = self.name.split("/")
        try:
            with _open_folder(self.output_dir) as top:
                owner = os.fstat(top).st_uid
                at = os.dup(top)
                try:
                    for folder in folders:
                        below = os.open(folder, _FOLDER, dir_fd=at)
                        os.close(at)
                        at = below
                    fd = os.open(last, _FILE, dir_fd=at)
                finally:
                    os.close(at)
        except OSError as error:
            raise OutputRefused(f"{self.name} cannot be opened: {error.strerror}") from error
        reason = _reason_against(os.fstat(fd), owner)
        if reason:
            os.close(fd)
            raise OutputRefused(f"{self.name} is {reason}")
        return os.fdopen(fd, "rb")


@dataclass(frozen=True)
class Skipped:
    """Something in the output folder that is not published; `name` may hold backslash escapes."""

    name: str
    reason: str


@dataclass(frozen=True)
class Collected:
    """`files` by name, and what was left out."""

    files: list[OutputFile]
    skipped: list[Skipped]


def collect(output_dir: Path, limit_files: int = 10_000) -> Collected:
    """All outputs below `output_dir`. Raises TooManyOutputs above the limit, OutputRefused when it is no folder."""
    found = Collected([], [])
    try:
        with _open_folder(output_dir) as top:
            _walk(top, "", output_dir, os.fstat(top).st_uid, limit_files, found)
    except OSError as error:
        raise OutputRefused(f"The output folder cannot be read: {error.strerror}") from error
    found.files.sort(key=lambda file: file.name)
    return found


def _walk(folder: int, prefix: str, output_dir: Path, owner: int, limit: int, found: Collected) -> None:
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries]
    for entry_name in names:
        name = prefix + entry_name
        try:
            reason = _take(folder, entry_name, name, output_dir, owner, limit, found)
        except OSError as error:
            reason = f"cannot be read: {error.strerror}"
        if reason:
            found.skipped.append(Skipped(name.encode("utf-8", "backslashreplace").decode(), reason))


def _take(folder: int, entry: str, name: str, output_dir: Path, owner: int, limit: int, found: Collected) -> str:
    """Adds a file, or all below a folder; the reason why not, or ''."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return "the name is not valid UTF-8"
    status = os.stat(entry, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISDIR(status.st_mode):
        if name.count("/") >= _MAX_DEPTH:
            return f"more than {_MAX_DEPTH} folders deep"
        below = os.open(entry, _FOLDER, dir_fd=folder)
        try:
            _walk(below, f"{name}/", output_dir, owner, limit, found)
        finally:
            os.close(below)
        return ""
    reason = _reason_against(status, owner)
    if not reason:
        if len(found.files) >= limit:
            raise TooManyOutputs(f"The function left more than {limit} files; pack them into an archive")
        content_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
        found.files.append(OutputFile(name, status.st_size, content_type, output_dir))
    return reason


def _reason_against(status: os.stat_result, owner: int) -> str:
    if not stat.S_ISREG(status.st_mode):
        return _KINDS.get(stat.S_IFMT(status.st_mode), "not a regular file")
    if status.st_uid != owner:
        return "a file of another user"
    return ""


@contextmanager
def _open_folder(path: Path) -> Iterator[int]:
    fd = os.open(path, _FOLDER)
    try:
        yield fd
    finally:
        os.close(fd)
