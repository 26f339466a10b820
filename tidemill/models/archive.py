"""The code archive of a function: a gzipped tar whose bytes depend on the files alone.

The same folder gives the same SHA-256 on every machine, so that an unchanged deploy is the same revision: names are
sorted, times and owners are zero, modes are 0644 or 0755.
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tidemill.errors import InvalidSpec

_SKIPPED_FOLDERS = frozenset({"__pycache__", ".git", ".venv", "venv", ".mypy_cache", ".ruff_cache", ".pytest_cache"})
_SKIPPED_SUFFIXES = (".pyc", ".pyo", "~", ".swp")
MAX_BYTES = 512 * 2**20


def pack(folder: Path, into: BinaryIO) -> None:
    """Write the archive of a function's folder.

    Raises:
        InvalidSpec: for links, devices, and folders of more than 512 MiB.
    """
    total = 0
    with gzip.GzipFile(fileobj=into, mode="wb", mtime=0, filename="") as zipped:
        with tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for path, name in _files(folder):
                with path.open("rb") as source:
                    status = os.fstat(source.fileno())
                    info = tarfile.TarInfo(name)
                    info.size = status.st_size
                    info.mode = 0o755 if status.st_mode & 0o100 else 0o644
                    total += info.size
                    if total > MAX_BYTES:
                        raise InvalidSpec(
                            f"the folder {folder} holds more than {MAX_BYTES // 2**20} MiB",
                            hint="Keep weights and data out of it: in a bucket, in a wheel, or in a folder that agents "
                            "may read (TIDEMILL_AGENT__READABLE).",
                        )
                    tar.addfile(info, source)


def pack_bytes(folder: Path) -> bytes:
    """Give the archive as bytes; for folders that fit into memory easily."""
    buffer = io.BytesIO()
    pack(folder, buffer)
    return buffer.getvalue()


def _files(folder: Path) -> Iterator[tuple[Path, str]]:
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if f not in _SKIPPED_FOLDERS)
        for name in sorted(names):
            path = Path(root, name)
            if name.endswith(_SKIPPED_SUFFIXES):
                continue
            if path.is_symlink() or not path.is_file():
                raise InvalidSpec(
                    f"{path} is not a regular file",
                    hint="Put a copy of the file in the folder; links are not followed.",
                )
            yield path, path.relative_to(folder).as_posix()
