"""What the calls of the client say to a driver: ask this, pause that long, do these at once, hand this to the user.

A call (see `jobs`, `catalogue`, `mapping`) is a generator. It yields `Request`, `Pause`, `Together` or `Emit`
and is sent what came of it; its return value is the value of the call. So every rule about retries, waiting and errors
stands once and is tested without a network, and a driver is only a loop (httpx does so for its auth flows).
A driver that gets no answer throws `NoAnswer` into the call, which decides whether to ask again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeAlias, TypeVar

from tidemill.errors import ServiceUnavailable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Body:
    """A file to send: bytes in memory, or a path that is opened anew for each try."""

    name: str
    content: bytes | Path
    content_type: str | None = None

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.content) if isinstance(self.content, bytes) else self.content.stat().st_size


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request. `path` is quoted and lies below the service's address; a full URL goes elsewhere without token.

    At most one of `json`, `parts` (multipart form: field name -> text or file) and `body` is given. The body of a
    good answer goes to `sink` when there is one. `wait_s` is how long the service itself may take before it answers.
    Sending it twice does no harm: what begins something carries an idempotency key.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    json: Any = None
    parts: tuple[tuple[str, str | Body], ...] = ()
    body: Body | None = None
    sink: Callable[[], IO[bytes]] | None = None
    on_sent: Callable[[int], None] | None = None
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Response:
    """An answer. Header names are in lower case; `content` is empty when the body went to a sink."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes = b""

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    def json(self) -> Any:
        """The body as JSON.

        Raises:
            ServiceUnavailable: it is none, so something else than Tidemill answers at this address.
        """
        try:
            return json.loads(self.content)
        except ValueError as error:
            raise ServiceUnavailable(
                f"The answer is not JSON: {self.content[:80]!r}",
                hint="Something else than Tidemill seems to listen there; check TIDEMILL_URL.",
            ) from error


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait this many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Together:
    """Run these calls at the same time. Sent back: a list with the value, or the exception object, of each."""

    calls: tuple[Call[Any], ...]


@dataclass(frozen=True, slots=True)
class Emit:
    """Hand a value to the user, who asks for the next one when he wants it."""

    value: Any


class NoAnswer(ServiceUnavailable):
    """The service did not answer. `sent` is false when the request cannot have reached it, in no try."""

    code = "not_reachable"
    default_hint = (
        "Start it with `tidemill up -d`, or set TIDEMILL_URL to where it runs; `tidemill doctor` looks at both."
    )

    def __init__(self, message: str, *, sent: bool = True, **more: Any) -> None:
        super().__init__(message, **more)
        self.sent = sent


Command: TypeAlias = Request | Pause | Together | Emit
Call: TypeAlias = Generator[Command, Any, T]
