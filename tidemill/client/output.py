"""A result that is a file: its bytes in memory, or saved under a name that stays in the folder it was meant for."""

from __future__ import annotations

import os
import secrets
import unicodedata
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tidemill.client.values import OutputInfo

if TYPE_CHECKING:
    from tidemill.client.aio import AsyncClient
    from tidemill.client.sync import Client

_NAME_BYTES = 200


class OutputFields:
    """What is known of a result without asking: `name`, `size` in bytes, `content_type`, `bucket` and `key`."""

    def __init__(self, job_id: str, info: OutputInfo) -> None:
        self._job_id = job_id
        self._info = info

    @property
    def name(self) -> str:
        return self._info.name

    @property
    def size(self) -> int:
        return self._info.size

    @property
    def content_type(self) -> str | None:
        return self._info.content_type

    @property
    def bucket(self) -> str:
        return self._info.bucket

    @property
    def key(self) -> str:
        return self._info.key

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}, {self.size} bytes>"


class Output(OutputFields):
    """A result that is a file."""

    def __init__(self, client: Client, job_id: str, info: OutputInfo) -> None:
        super().__init__(job_id, info)
        self._client = client

    @property
    def url(self) -> str:
        """A presigned address, which works for a while without a token."""
        return self._client._run(self._client._jobs.address(self._job_id, self.name))

    def read(self) -> bytes:
        """The whole content."""
        return self._client._run(self._client._jobs.fetch(self._job_id, self.name))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it to `path`, or under its own name into the folder `path`; give where it is.

        The file appears whole or not at all; one that is there already is replaced.
        """
        with Saved(path, self.name) as saved:
            self._client._run(self._client._jobs.fetch(self._job_id, self.name, saved.open))
        return saved.target


class AsyncOutput(OutputFields):
    """A result that is a file."""

    def __init__(self, client: AsyncClient, job_id: str, info: OutputInfo) -> None:
        super().__init__(job_id, info)
        self._client = client

    async def url(self) -> str:
        """A presigned address, which works for a while without a token."""
        return await self._client._run(self._client._jobs.address(self._job_id, self.name))

    async def read(self) -> bytes:
        """The whole content."""
        return await self._client._run(self._client._jobs.fetch(self._job_id, self.name))

    async def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it to `path`, or under its own name into the folder `path`; give where it is."""
        with Saved(path, self.name) as saved:
            await self._client._run(self._client._jobs.fetch(self._job_id, self.name, saved.open))
        return saved.target


class Saved:
    """A file on its way to a place: written beside it under another name, renamed when it is whole."""

    def __init__(self, path: str | os.PathLike[str], name: str) -> None:
        given = Path(path)
        self.target = given / safe_name(name) if given.is_dir() else given
        self._part: Path | None = None

    def __enter__(self) -> Saved:
        return self

    def open(self) -> IO[bytes]:
        """The empty file to write to; opened again, it starts anew."""
        self._drop()
        self._part = self.target.parent / f".tidemill-{secrets.token_hex(8)}"
        return self._part.open("xb")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._part is not None:
            self._part.replace(self.target)
            self._part = None
        self._drop()

    def _drop(self) -> None:
        if self._part is not None:
            with suppress(FileNotFoundError):
                self._part.unlink()
            self._part = None


def safe_name(name: str) -> str:
    """Give a name of one part that may be created in a folder: no separators, no dot names, no control characters."""
    text = "".join("_" if unicodedata.category(c) in {"Cc", "Cs"} or c in "/\\" else c for c in name)
    text = text.lstrip(".") if text.strip(".") else ""
    encoded = text.encode("utf-8")
    if len(encoded) > _NAME_BYTES:
        stem, dot, suffix = text.rpartition(".")
        tail = (dot + suffix).encode("utf-8") if dot and len(suffix) < 16 else b""
        head = (stem if tail else text).encode("utf-8")[: _NAME_BYTES - len(tail)]
        text = head.decode("utf-8", "ignore") + tail.decode("utf-8")
    return text or "output"


def unpack(found: Mapping[str, Any], make: Any) -> Any:
    """Give results as a user wants them: the value, the file, None, or a dict of several by name."""
    values = {name: make(value) if isinstance(value, OutputInfo) else value for name, value in found.items()}
    if not values:
        return None
    if len(values) == 1:
        return next(iter(values.values()))
    return values
