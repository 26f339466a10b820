"""Downloads into a new file: pinned, in constant memory, resumed where the connection broke.

The file is made with O_EXCL and O_NOFOLLOW and removed again when the download fails; its name is the caller's own and
has nothing to do with the key, so no key can leave the folder. Content is hashed on its way.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tidemill.errors import PreconditionFailed, StoreUnavailable
from tidemill.store.api import Downloaded, ObjectInfo

CHUNK_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Opened:
    """An answer whose content is still to be read. `size` is that of the whole object, `info` is what it is now."""

    size: int
    info: ObjectInfo
    chunks: Iterator[bytes]


# (offset, etag) -> the content from there on, of the object with that ETag
Open = Callable[[int, str | None], Opened]


def download(open_at: Open, path: Path, etag: str | None) -> Downloaded:
    """Writes the object to `path`. See `Store.download` for what it promises."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(handle, "wb", buffering=0) as file:
            return _fill(open_at, file.write, etag)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _fill(open_at: Open, write: Callable[[memoryview], int | None], etag: str | None) -> Downloaded:
    hasher = hashlib.sha256()
    done = 0
    pin = etag
    while True:
        before = done
        try:
            opened = open_at(done, pin)
            if pin is not None and opened.info.etag != pin:
                raise PreconditionFailed(f"the object changed from {pin} to {opened.info.etag} while it was read")
            pin = opened.info.etag
            for chunk in opened.chunks:
                view = memoryview(chunk)
                while view:
                    view = view[write(view) or 0 :]
                hasher.update(chunk)
                done += len(chunk)
            if done == opened.size:
                return Downloaded(done, hasher.hexdigest(), opened.info.content_type, opened.info.metadata)
            if done == before:
                raise StoreUnavailable(f"the store ends an object of {opened.size} bytes after {done}")
        except StoreUnavailable:
            # The driver has tried several times already. Only a download that moved since then goes on.
            if done == before:
                raise
