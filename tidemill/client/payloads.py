"""What a caller may give as input of a job, and what becomes of it on the wire.

A path (text or `Path`), bytes, an open binary file, anything with a `path` such as `tidemill.File`, or a mapping
`{"bucket": ..., "key": ...}` that names an object which is in the store already.
"""

from __future__ import annotations

import mimetypes
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from tidemill.client.wire import Body
from tidemill.errors import InvalidSpec

_OBJECT_FIELDS = frozenset({"bucket", "key", "version_id"})


class Readable(Protocol):
    """An open binary file; its `name` is used when it is text."""

    def read(self) -> bytes: ...


class HasPath(Protocol):
    """A file with a local path and a name, such as `tidemill.File`."""

    @property
    def path(self) -> Path: ...

    @property
    def name(self) -> str: ...


Payload: TypeAlias = "str | os.PathLike[str] | bytes | Readable | HasPath | Mapping[str, Any]"


def prepare(payload: Payload) -> Body | dict[str, Any]:
    """Give the file to send, or the object to name.

    An open file is read to its end, so that it can be sent twice: give a path for what is too large for memory.

    Raises:
        InvalidSpec: the file is not there, or nothing of the above was given.
    """
    if isinstance(payload, bytes | bytearray | memoryview):
        return Body("payload", bytes(payload))
    if isinstance(payload, Mapping):
        return _object(payload)
    if isinstance(payload, str | os.PathLike):
        return _file(Path(payload), None)
    path = getattr(payload, "path", None)
    if isinstance(path, str | os.PathLike):
        return _file(Path(path), getattr(payload, "name", None))
    if callable(getattr(payload, "read", None)):
        return _open_file(payload)
    raise InvalidSpec(
        f"{type(payload).__name__} cannot be the input of a job.",
        hint='Give a path, bytes, an open binary file, or {"bucket": ..., "key": ...}.',
    )


def _object(payload: Mapping[str, Any]) -> dict[str, Any]:
    unknown = set(payload) - _OBJECT_FIELDS
    if unknown or not {"bucket", "key"} <= set(payload):
        raise InvalidSpec(
            "A mapping as input names an object: bucket and key, if wanted version_id.",
            hint='Write {"bucket": "inbox", "key": "cat.jpg"}; for JSON as input give json.dumps(...).encode().',
        )
    return dict(payload)


def _file(path: Path, name: str | None) -> Body:
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist" if not path.exists() else "is no regular file"
        raise InvalidSpec(f"{path} {what}.", hint="Give the path of a file that this process can read.")
    name = name or path.name
    return Body(name, path, mimetypes.guess_type(name)[0])


def _open_file(payload: Any) -> Body:
    content = payload.read()
    if not isinstance(content, bytes):
        raise InvalidSpec("The open file gives text.", hint='Open it as binary: open(path, "rb").')
    name = getattr(payload, "name", None)
    return Body(Path(name).name if isinstance(name, str) else "payload", content)
