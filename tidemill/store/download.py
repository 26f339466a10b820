"""Downloads into a new file: pinned, in constant memory, resumed where the connection broke.

The file is made with O_EXCL and O_NOFOLLOW and removed again when the download fails; its name is the caller's own and
has nothing to do with the key, so no key can leave the folder. Content is hashed on its way.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from tidemill.errors import PreconditionFailed, StoreUnavailable
from tidemill.store.api import Downloaded, ObjectInfo

BUFFER_BYTES = 2**18
Write = Callable[[bytes], object]


@dataclass(frozen=True, slots=True)
class Fetched:
    """The end of an answer whose content was written. `size` is that of the whole object (None: unknown, and more is to
    come), `info` is what it is now."""

    size: int | None
    info: ObjectInfo


# (offset, etag, write) -> writes the content from there on, of the object with that ETag; less where the answer broke
Fetch = Callable[[int, str | None, Write], Fetched]


def download(fetch: Fetch, path: Path, etag: str | None) -> Downloaded:
    """Writes the object to `path`. See `Store.download` for what it promises."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(handle, "wb", buffering=0) as file:
            return _fill(fetch, _Hashed(file), etag)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


class _Hashed:
    """A file that is hashed as it is written; what comes in small pieces is gathered first."""

    def __init__(self, file: FileIO) -> None:
        self._file = file
        self._hasher = hashlib.sha256()
        self._gathered = bytearray()
        self.done = 0

    def write(self, chunk: bytes) -> None:
        self._gathered += chunk
        self.done += len(chunk)
        if len(self._gathered) >= BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        self._hasher.update(self._gathered)
        view = memoryview(bytes(self._gathered))
        while view:
            view = view[self._file.write(view) or 0 :]
        self._gathered.clear()

    def sha256(self) -> str:
        self.flush()
        return self._hasher.hexdigest()


def _fill(fetch: Fetch, file: _Hashed, etag: str | None) -> Downloaded:
    pin = etag
    while True:
        before = file.done
        fetched = fetch(before, pin, file.write)
        if pin is not None and fetched.info.etag != pin:
            raise PreconditionFailed(f"the object changed from {pin} to {fetched.info.etag} while it was read")
        pin = fetched.info.etag
        if file.done == fetched.size:
            return Downloaded(file.done, file.sha256(), fetched.info.content_type, fetched.info.metadata)
        if fetched.size is not None and file.done > fetched.size:
            raise StoreUnavailable(f"the store sends {file.done} bytes of an object of {fetched.size}")
        # The driver has tried several times already. Only a download that moved since then goes on.
        if file.done == before:
            raise StoreUnavailable(f"the store ends an object of {fetched.size} bytes after {file.done}")
