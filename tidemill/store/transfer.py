"""One HTTP request by libcurl (pycurl), in the caller's own thread, on a connection that is kept.

A request ends when nothing moves for its patience, either way; however long the whole takes, and whatever the speed. A
signal is heard within a second. A POST gets a connection of its own: libcurl sends a request again by itself when a
kept connection turns out to be closed, and one that ends an upload must not arrive twice.
"""

from __future__ import annotations

import io
import os
import time
import urllib.parse
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import certifi
import pycurl

from tidemill.store.download import Write

CONNECT_S = 3
_IDLE = 64  # connections that are kept; each holds three descriptors
_BUFFER_BYTES = 2**18
_STEP_S = 2.0  # libcurl looks every second
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_NOWHERE = io.BytesIO()


@dataclass(frozen=True, slots=True)
class Answer:
    """`headers` by lower-case name, `data` unless it was handed to a writer (`begun`). `cut`: why it is not whole."""

    status: int
    headers: Mapping[str, str]
    data: bytes = b""
    begun: bool = False
    cut: pycurl.error | None = None


Begin = Callable[[Answer], Write]  # a 2xx of which the headers have come -> who gets its content


class Transfers:
    """Makes requests, and keeps the connections of those that have ended. Thread-safe; not for use after a fork.

    `options` are set on each handle once.
    """

    def __init__(self, address: str, options: Mapping[int, str | bytes | int]) -> None:
        self._options = {**_common(address), **options}
        self._idle: deque[pycurl.Curl] = deque()

    def make(
        self,
        method: str,
        url: str,
        lines: Sequence[bytes],
        body: bytes,
        patience_s: float,
        begin: Begin | None,
    ) -> Answer:
        """One try. What `begin` or its writer raises comes out."""
        try:
            handle = self._idle.pop()
        except IndexError:
            handle = pycurl.Curl()
            for option, value in self._options.items():
                handle.setopt(option, value)
        if method == "HEAD":
            handle.setopt(pycurl.NOBODY, 1)
        else:
            handle.setopt(pycurl.HTTPGET, 1)  # also ends what a request before was
            if method in ("PUT", "POST"):
                handle.setopt(pycurl.POSTFIELDS, body)
        told, data = io.BytesIO(), io.BytesIO()
        watch = _Watch(patience_s, told)
        writing = _Writing(begin, told, data) if begin is not None else None
        handle.setopt(pycurl.CUSTOMREQUEST, method)
        handle.setopt(pycurl.URL, url)
        handle.setopt(pycurl.HTTPHEADER, lines)
        handle.setopt(pycurl.FRESH_CONNECT, int(method == "POST"))
        handle.setopt(pycurl.XFERINFOFUNCTION, watch)
        handle.setopt(pycurl.WRITEHEADER, told)
        if writing is None:
            handle.setopt(pycurl.WRITEDATA, data)
        else:
            handle.setopt(pycurl.WRITEFUNCTION, writing)
        cut: pycurl.error | None = None
        try:
            handle.perform()
        except pycurl.error as error:
            cut = pycurl.error(pycurl.E_OPERATION_TIMEDOUT, watch.why) if watch.over else error
        except BaseException:  # a signal
            handle.close()
            raise
        status = handle.getinfo(pycurl.RESPONSE_CODE)
        if cut is None and len(self._idle) < _IDLE:
            # An idle handle holds no content.
            handle.setopt(pycurl.WRITEDATA, _NOWHERE)
            handle.setopt(pycurl.XFERINFOFUNCTION, _unwatched)
            if body:
                handle.setopt(pycurl.POSTFIELDS, b"")
            self._idle.append(handle)
        else:
            handle.close()
        if writing is not None and writing.fault is not None:
            raise writing.fault
        begun = writing is not None and writing.write is not None
        return Answer(status, _headers(told.getvalue()), data.getvalue(), begun, cut)


class _Watch:
    """Ends a request in which nothing moves. Time in which this process was stopped counts for a step only: what came
    meanwhile is still to be read."""

    def __init__(self, patience_s: float, told: io.BytesIO) -> None:
        self._patience_s = patience_s
        self._told = told
        self._moved = -1
        self._still_s = 0.0
        self._looked_at = time.monotonic()
        self.over = False

    @property
    def why(self) -> str:
        return f"nothing came for {self._patience_s:g} s"

    def __call__(self, _wanted: int, down: int, _given: int, up: int) -> int:
        """What libcurl calls now and then, at least once a second; anything but 0 ends the request."""
        now = time.monotonic()
        step_s, self._looked_at = min(now - self._looked_at, _STEP_S), now
        moved = down + up + self._told.tell()
        self._still_s = self._still_s + step_s if moved == self._moved else 0.0
        self._moved = moved
        self.over = self._still_s > self._patience_s
        return int(self.over)


def _unwatched(*_: int) -> int:
    return 0


class _Writing:
    """Hands the content of a 2xx on to its writer; that of a refusal is kept in `data`."""

    def __init__(self, begin: Begin, told: io.BytesIO, data: io.BytesIO) -> None:
        self._begin = begin
        self._told = told
        self._data = data
        self._refused = False
        self.write: Write | None = None
        self.fault: BaseException | None = None

    def __call__(self, chunk: bytes) -> int | None:
        """What libcurl calls; a number that is not the chunk's size ends the request."""
        try:
            if self.write is None and not self._refused:
                told = self._told.getvalue()
                status = _status(told)
                self._refused = not 200 <= status < 300
                if not self._refused:
                    self.write = self._begin(Answer(status, _headers(told)))
            (self.write or self._data.write)(chunk)
        except BaseException as fault:  # noqa: BLE001 - it goes through C, and is raised behind it
            self.fault = fault
            return 0
        return None


def _common(address: str) -> dict[int, str | bytes | int]:
    options: dict[int, str | bytes | int] = {
        pycurl.USERAGENT: "tidemill",
        pycurl.NOSIGNAL: 1,
        pycurl.CONNECTTIMEOUT: CONNECT_S,
        pycurl.NOPROGRESS: 0,
        pycurl.HTTP_VERSION: pycurl.CURL_HTTP_VERSION_1_1,
        pycurl.BUFFERSIZE: _BUFFER_BYTES,
        pycurl.TCP_KEEPALIVE: 1,
        pycurl.CAINFO: os.environ.get("SSL_CERT_FILE") or certifi.where(),
    }
    if urllib.parse.urlsplit(address).hostname in _LOOPBACK:
        options[pycurl.NOPROXY] = "*"  # one for the outside must not get what stays on this machine
    return options


def _status(told: bytes) -> int:
    return int(_block(told)[0].split(" ")[1])


def _headers(told: bytes) -> dict[str, str]:
    pairs = (line.partition(":") for line in _block(told)[1:])
    return {name.lower(): value.strip() for name, _, value in pairs}


def _block(told: bytes) -> list[str]:
    """The lines before the content: one that only says `continue` may come before it, and trailers behind it."""
    try:
        text = told.decode()
    except UnicodeDecodeError:
        text = told.decode("latin-1")
    blocks = [block for block in text.split("\r\n\r\n") if block.startswith("HTTP/")]
    return blocks[-1].split("\r\n") if blocks else [""]
