"""Messages between agent and runner: four bytes of length (big-endian), then a JSON object in ASCII.

Lone surrogates (file names, broken text) travel as JSON escapes; who shows a text replaces them.
"""

from __future__ import annotations

import json
import os
import struct
from typing import Any

Message = dict[str, Any]
# A message holds parameters, a log line or an error: more than this is somebody's nonsense.
LIMIT_BYTES = 16 * 1024 * 1024
_LENGTH = struct.Struct(">I")


class WireError(Exception):
    """The other side sent what is not a message."""


def encode(message: Message) -> bytes:
    """The bytes of one message. Raises WireError when it is larger than LIMIT_BYTES."""
    body = json.dumps(message, separators=(",", ":")).encode("ascii")
    if len(body) > LIMIT_BYTES:
        raise WireError(f"a message of {len(body)} bytes is larger than {LIMIT_BYTES}")
    return _LENGTH.pack(len(body)) + body


def send(fd: int, message: Message) -> None:
    """Writes one message to a blocking descriptor. The caller sees to it that two threads do not do so at once."""
    data = memoryview(encode(message))
    while data:
        data = data[os.write(fd, data) :]


def receive(fd: int) -> Message | None:
    """Reads one message from a blocking descriptor, and not a byte more; None at the end of the stream."""
    head = _exactly(fd, _LENGTH.size)
    if head is None:
        return None
    body = _exactly(fd, _size(head))
    return None if body is None else _decode(body)


class Decoder:
    """Messages out of chunks, for a non-blocking reader. One larger than `limit` (bytes) is refused."""

    def __init__(self, limit: int = LIMIT_BYTES) -> None:
        self._limit = limit
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> list[Message]:
        """The messages that are complete now. Raises WireError on what is not a message."""
        self._buffer += chunk
        messages = []
        while len(self._buffer) >= _LENGTH.size:
            end = _LENGTH.size + _size(bytes(self._buffer[: _LENGTH.size]), self._limit)
            if len(self._buffer) < end:
                break
            messages.append(_decode(bytes(self._buffer[_LENGTH.size : end])))
            del self._buffer[:end]
        return messages


def _size(head: bytes, limit: int = LIMIT_BYTES) -> int:
    size: int = _LENGTH.unpack(head)[0]
    if size > limit:
        raise WireError(f"a message of {size} bytes is larger than {limit}")
    return size


def _exactly(fd: int, size: int) -> bytes | None:
    parts = []
    while size:
        part = os.read(fd, size)
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _decode(body: bytes) -> Message:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise WireError(f"not JSON: {error}") from error
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise WireError("not an object with a type")
    return message
