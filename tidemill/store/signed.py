"""Signed S3 requests, with bounded waits and retries: the one way to the store.

libcurl (pycurl) carries and signs them in the caller's own thread: 0.2 ms of CPU a request; the minio SDK takes 0.6 ms
and has no conditional put. A job makes six requests one after the other, and each hand-over to a thread of a driver
would cost it as much as a round trip to Redis. Any key that a store can keep goes through.

Retries: five within 10 s, which outlasts a store that restarts (one second); the next byte must come within 12 s.
Conditional puts on SeaweedFS wait for each other, three or more contenders up to 10 s; only therefore is it that long.
A conditional put whose answer was lost may meet itself: for the caller that is a lost race, and callers read back.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import io
import math
import os
import random
import re
import time
import urllib.parse
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import certifi
import pycurl
from minio.credentials.credentials import Credentials
from minio.signer import sign_v4_s3

from tidemill.errors import (
    InvalidSpec,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    ServiceUnavailable,
    StoreUnavailable,
    TidemillError,
)
from tidemill.settings import StoreSettings
from tidemill.store.keys import check_bucket

CONNECT_S = 3
READ_S = 12
SLOW_READ_S = 60
RETRY_S = 10.0
RETRIES = 5
_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 2.0
_PASSING = frozenset({408, 429, 500, 502, 503, 504})
_NOT_SENT = frozenset({pycurl.E_COULDNT_RESOLVE_HOST, pycurl.E_COULDNT_CONNECT})
_BUFFER_BYTES = 2**18
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_NONE = (b"Expect:", b"Accept:")  # headers that libcurl would add of its own
_PLAIN = re.compile(r"[A-Za-z0-9._~-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NOWHERE = io.BytesIO()
_EMPTY = hashlib.sha256(b"").hexdigest()
_PROBLEM = re.compile(rb"<(Code|Message)>([^<]*)</\1>")


@dataclass(frozen=True, slots=True)
class Answer:
    """`headers` by lower-case name, `data` unless it was handed to a writer (`begun`). `cut`: why it is not whole."""

    status: int
    headers: Mapping[str, str]
    data: bytes
    begun: bool = False
    cut: pycurl.error | None = None


class _Writing:
    """Hands the content of a 2xx on to a writer; that of a refusal is kept in `data`."""

    def __init__(self, write: Callable[[bytes], object], told: io.BytesIO, data: io.BytesIO) -> None:
        self._write = write
        self._told = told
        self._data = data
        self.begun = False
        self.fault: BaseException | None = None

    def __call__(self, chunk: bytes) -> int | None:
        """What libcurl calls; a number that is not the chunk's size ends the request."""
        if not self.begun and not _block(self._told.getvalue())[0].split(" ")[1].startswith("2"):
            self._data.write(chunk)
            return None
        self.begun = True
        try:
            self._write(chunk)
        except BaseException as fault:  # noqa: BLE001 - it goes through C, and is raised behind it
            self.fault = fault
            return 0
        return None


class SignedRequests:
    """Sends requests to one store. Thread-safe; not for use after a fork."""

    def __init__(self, settings: StoreSettings) -> None:
        self._address = settings.endpoint.rstrip("/")
        self._secure = self._address.startswith("https:")
        self._region = settings.region
        self._credentials = Credentials(settings.access_key, settings.secret_key.get_secret_value())
        # libcurl writes other characters of an access key as %XX, which no store reads.
        self._curl_signs = _PLAIN.fullmatch(settings.access_key) is not None
        self._idle: deque[pycurl.Curl] = deque()  # each with its connection

    def send(
        self,
        method: str,
        bucket: str = "",
        key: str = "",
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        accept: Sequence[int] = (),
        write: Callable[[bytes], object] | None = None,
        slow: bool = False,
    ) -> Answer:
        """One request, again while the trouble may pass; gives the answer of a 2xx, or raises one of our errors.

        `accept`: more statuses that are an answer. `write` gets the content of a 2xx as it comes; where it breaks off
        after some was written, the answer has a `cut`. What `write` raises comes out. `slow` waits longer for the
        first byte, for what the store does at length (a copy).
        """
        if bucket or key:
            check_bucket(bucket)
        url = self._url(bucket, key, query)
        headers = headers or {}
        lines = [b"x-amz-content-sha256: " + self._digest(body), *_NONE]
        lines += [_line(name, value) for name, value in headers.items()]
        if "Content-Type" not in headers:
            lines.append(b"Content-Type:")
        if not self._curl_signs:
            lines += self._signature(method, url, headers, self._digest(body).decode())
        give_up, pause_s = time.monotonic() + RETRY_S, _PAUSE_S
        for left in reversed(range(RETRIES + 1)):
            answer = self._once(method, url, lines, body, SLOW_READ_S if slow else READ_S, write)
            if answer.begun or (answer.cut is None and (200 <= answer.status < 300 or answer.status in accept)):
                return answer
            if not left or not _may_pass(method, answer) or time.monotonic() + pause_s > give_up:
                break
            time.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - spreads callers, guards nothing
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        if answer.cut is not None:
            raise _broken(f"{method} {bucket}/{key[:100]}", answer.cut) from answer.cut
        raise _refusal(method, bucket, key, answer.status, answer.data)

    def _url(self, bucket: str, key: str, query: Mapping[str, str] | None) -> str:
        url = f"{self._address}/{bucket}"
        if key:
            url += "/" + urllib.parse.quote(key, safe="/~")
        if query:
            url += "?" + "&".join(sorted(f"{_quote(name)}={_quote(value)}" for name, value in query.items()))
        return url

    def _once(
        self,
        method: str,
        url: str,
        lines: Sequence[bytes],
        body: bytes,
        read_s: float,
        write: Callable[[bytes], object] | None,
    ) -> Answer:
        try:
            handle = self._idle.pop()
        except IndexError:
            handle = self._connect()
        if method == "HEAD":
            handle.setopt(pycurl.NOBODY, 1)
        else:
            handle.setopt(pycurl.HTTPGET, 1)  # also ends what a request before was
            if method in ("PUT", "POST"):
                handle.setopt(pycurl.POSTFIELDS, body)
        told, data = io.BytesIO(), io.BytesIO()
        writing = _Writing(write, told, data) if write is not None else None
        handle.setopt(pycurl.CUSTOMREQUEST, method)
        handle.setopt(pycurl.URL, url)
        handle.setopt(pycurl.HTTPHEADER, lines)
        handle.setopt(pycurl.LOW_SPEED_TIME, math.ceil(read_s))
        handle.setopt(pycurl.WRITEHEADER, told)
        if writing is None:
            handle.setopt(pycurl.WRITEDATA, data)
        else:
            handle.setopt(pycurl.WRITEFUNCTION, writing)
        cut: pycurl.error | None = None
        try:
            handle.perform()
        except pycurl.error as error:
            cut = error
        status = handle.getinfo(pycurl.RESPONSE_CODE)
        if cut is None:
            # An idle handle holds no content.
            handle.setopt(pycurl.WRITEDATA, _NOWHERE)
            if body:
                handle.setopt(pycurl.POSTFIELDS, b"")
            self._idle.append(handle)
        else:
            handle.close()
        if writing is not None and writing.fault is not None:
            raise writing.fault
        begun = writing is not None and writing.begun
        return Answer(status, _headers(told.getvalue()), data.getvalue(), begun, cut)

    def _signature(self, method: str, url: str, headers: Mapping[str, str], digest: str) -> list[bytes]:
        address, now = urllib.parse.urlsplit(url), dt.datetime.now(dt.UTC)
        own = {"Host": address.netloc, "x-amz-content-sha256": digest, "x-amz-date": now.strftime("%Y%m%dT%H%M%SZ")}
        signed = sign_v4_s3(
            method=method,
            url=address,
            region=self._region,
            headers={**headers, **own},
            credentials=self._credentials,
            content_sha256=digest,
            date=now,
        )
        return [_line(name, str(signed[name])) for name in ("x-amz-date", "Authorization")]

    def _digest(self, body: bytes) -> bytes:
        if not body:
            return _EMPTY.encode()
        if self._secure:
            return b"UNSIGNED-PAYLOAD"  # TLS guards it, and hashing a large part costs as much as sending it
        return hashlib.sha256(body).hexdigest().encode()

    def _connect(self) -> pycurl.Curl:
        handle = pycurl.Curl()
        for option, value in (
            (pycurl.USERAGENT, "tidemill"),
            (pycurl.NOSIGNAL, 1),
            (pycurl.CONNECTTIMEOUT, CONNECT_S),
            (pycurl.LOW_SPEED_LIMIT, 1),  # bytes a second
            (pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1),
            (pycurl.BUFFERSIZE, _BUFFER_BYTES),
            (pycurl.TCP_KEEPALIVE, 1),
            (pycurl.CAINFO, os.environ.get("SSL_CERT_FILE") or certifi.where()),
        ):
            handle.setopt(option, value)
        if self._curl_signs:
            handle.setopt(pycurl.AWS_SIGV4, f"aws:amz:{self._region}:s3")
            handle.setopt(pycurl.USERNAME, self._credentials.access_key)
            handle.setopt(pycurl.PASSWORD, self._credentials.secret_key)
        if urllib.parse.urlsplit(self._address).hostname in _LOOPBACK:
            handle.setopt(pycurl.NOPROXY, "*")  # one for the outside must not get what stays on this machine
        return handle


def _may_pass(method: str, answer: Answer) -> bool:
    """Whether another try may be made. A POST begins or ends an upload, so one that may have arrived is not repeated;
    for the other methods that is safe: a conditional put that meets itself is a 412, and callers read back."""
    if method == "POST":
        return answer.cut is not None and answer.cut.args[0] in _NOT_SENT
    return answer.cut is not None or answer.status in _PASSING


def _headers(told: bytes) -> dict[str, str]:
    pairs = (line.partition(":") for line in _block(told)[1:])
    return {name.lower(): value.strip() for name, _, value in pairs}


def _block(told: bytes) -> list[str]:
    """The lines before the content of the last answer: one that only says `continue` may come before it."""
    try:
        text = told.decode()
    except UnicodeDecodeError:
        text = told.decode("latin-1")
    return text.rstrip("\r\n").rpartition("\r\n\r\n")[2].split("\r\n")


def _line(name: str, value: str) -> bytes:
    if _CONTROL.search(value):
        raise InvalidSpec(f"{name} has a control character: {value[:100]!r}", hint="HTTP cannot carry it.")
    return f"{name}: {value}".encode()


def _quote(text: str) -> str:
    return urllib.parse.quote(text, safe="~")


def _broken(place: str, error: pycurl.error) -> StoreUnavailable:
    """The error for an answer that did not come, or not whole."""
    return unavailable(f"{place}: {error.args[-1]}")


def unavailable(why: str) -> StoreUnavailable:
    return StoreUnavailable(f"the store did not do it: {why[:500]}")


def _refusal(method: str, bucket: str, key: str, status: int, body: bytes) -> TidemillError:
    found = {name.decode(): text.decode("utf-8", "replace") for name, text in _PROBLEM.findall(body)}
    place = f"{bucket}/{key[:100]}" if key else bucket
    why = f"{method} {place}: {status} {found.get('Code', '')} {found.get('Message', '')}".rstrip()
    return error_of(status, place, why)


def error_of(status: int, place: str, why: str) -> TidemillError:
    """The error for an HTTP status of the store."""
    if status == 404:
        return NotFound(f"the store has no {place}", hint="Check the names of the bucket and the key.")
    # 409: two conditional writes met (AWS: ConditionalRequestConflict). For the caller that is a lost race: read back.
    if status in (409, 412, 304):
        return PreconditionFailed(f"{place} is not what was expected: {why}")
    if status in (401, 403):
        return NotAllowed(
            f"the store refuses: {why}",
            hint="Check TIDEMILL_STORE__ACCESS_KEY and TIDEMILL_STORE__SECRET_KEY, and the rights of that user.",
        )
    if 400 <= status < 500 and status not in (408, 429):
        return InvalidSpec(f"the store refuses: {why}", code="store_refused", hint="Read the store's own words above.")
    if status == 501:
        return ServiceUnavailable(f"the store cannot do it: {why}", hint="Use a store that can.")
    return unavailable(why)
