"""Signed S3 requests, with bounded waits and retries: the one way to the store.

libcurl carries and signs them in the caller's own thread: 0.2 ms of CPU a request; the minio SDK takes 0.6 ms and has
no conditional put. A job makes six requests one after the other, and each hand-over to a thread of a driver would cost
it as much as a round trip to Redis. Any key that a store can keep goes through.

Retries: five within 10 s, which outlasts a store that restarts (one second), and one of a request that took longer; the
next byte must come within 12 s. Conditional puts on SeaweedFS wait for each other, three or more contenders up to 10 s;
only therefore is it that long. A conditional put whose answer was lost may meet itself: for the caller that is a lost
race, and callers read back.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import random
import re
import time
import urllib.parse
from collections.abc import Mapping, Sequence

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
from tidemill.store.transfer import Answer, Begin, Transfers

READ_S = 12.0
SLOW_READ_S = 60.0
RETRY_S = 10.0
RETRIES = 5
_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 2.0
_PASSING = frozenset({408, 429, 500, 502, 503, 504})
_NOT_SENT = frozenset({pycurl.E_COULDNT_RESOLVE_HOST, pycurl.E_COULDNT_CONNECT})
_NONE = (b"Expect:", b"Accept:")  # headers that libcurl would add of its own
_PLAIN = re.compile(r"[A-Za-z0-9._~-]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_EMPTY = hashlib.sha256(b"").hexdigest()
_PROBLEM = re.compile(rb"<(Code|Message)>([^<]*)</\1>")


class SignedRequests:
    """Sends requests to one store. Thread-safe; not for use after a fork."""

    def __init__(self, settings: StoreSettings) -> None:
        self._secure = settings.endpoint.startswith("https:")
        # The port that clients leave out of the Host header, which is signed.
        self._address = settings.endpoint.rstrip("/").removesuffix(":443" if self._secure else ":80")
        self._region = settings.region
        self._access_key, self._secret_key = settings.access_key, settings.secret_key.get_secret_value()
        # libcurl writes other characters of an access key as %XX, which no store reads.
        self._curl_signs = _PLAIN.fullmatch(self._access_key) is not None
        signing: dict[int, str | bytes | int] = {
            pycurl.AWS_SIGV4: f"aws:amz:{settings.region}:s3",
            pycurl.USERNAME: self._access_key,
            pycurl.PASSWORD: self._secret_key.encode(),
        }
        self._transfers = Transfers(self._address, signing if self._curl_signs else {})

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
        begin: Begin | None = None,
        slow: bool = False,
    ) -> Answer:
        """One request, again while the trouble may pass; gives the answer of a 2xx, or raises one of our errors.

        `accept`: more statuses that are an answer. `begin` is called when the content of a 2xx begins, and gives who
        gets it; where that breaks off later, the answer has a `cut`. What either raises comes out. `slow` waits longer
        for the next byte, for what the store does at length (a copy).
        """
        if bucket or key:
            check_bucket(bucket)
        url = self._url(bucket, key, query)
        given = {name: value.strip() for name, value in headers.items()} if headers else {}
        digest = self._digest(body)
        lines = [b"x-amz-content-sha256: " + digest.encode(), *_NONE]
        lines += [_line(name, value) for name, value in given.items()]
        if "Content-Type" not in given:
            lines.append(b"Content-Type:")
        if not self._curl_signs:
            lines += self._signature(method, url, {name: value for name, value in given.items() if value}, digest)
        patience_s = SLOW_READ_S if slow else READ_S
        give_up, pause_s = time.monotonic() + RETRY_S, _PAUSE_S
        for left in reversed(range(RETRIES + 1)):
            answer = self._transfers.make(method, url, lines, body, patience_s, begin)
            if answer.begun or (answer.cut is None and (200 <= answer.status < 300 or answer.status in accept)):
                return answer
            late = time.monotonic() + pause_s > give_up
            if not left or not _may_pass(method, answer) or (late and (left < RETRIES or _silent(answer))):
                break
            time.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - spreads callers, guards nothing
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        if answer.cut is not None:
            raise unavailable(f"{method} {bucket}/{key[:100]}: {answer.cut.args[-1]}") from answer.cut
        raise _refusal(method, bucket, key, answer.status, answer.data)

    def _url(self, bucket: str, key: str, query: Mapping[str, str] | None) -> str:
        url = f"{self._address}/{bucket}"
        if key:
            url += "/" + urllib.parse.quote(key, safe="/~")
        if query:
            url += "?" + "&".join(sorted(f"{_quote(name)}={_quote(value)}" for name, value in query.items()))
        return url

    def _digest(self, body: bytes) -> str:
        if not body:
            return _EMPTY
        if self._secure:
            return "UNSIGNED-PAYLOAD"  # TLS guards it, and hashing a large part costs as much as sending it
        return hashlib.sha256(body).hexdigest()

    def _signature(self, method: str, url: str, headers: Mapping[str, str], digest: str) -> list[bytes]:
        address, now = urllib.parse.urlsplit(url), dt.datetime.now(dt.UTC)
        own = {"Host": address.netloc, "x-amz-content-sha256": digest, "x-amz-date": now.strftime("%Y%m%dT%H%M%SZ")}
        signed = sign_v4_s3(
            method=method,
            url=address,
            region=self._region,
            headers={**headers, **own},
            credentials=Credentials(self._access_key, self._secret_key),
            content_sha256=digest,
            date=now,
        )
        return [_line(name, str(signed[name])) for name in ("x-amz-date", "Authorization")]


def _may_pass(method: str, answer: Answer) -> bool:
    """Whether another try may be made. A POST begins or ends an upload, so one that may have arrived is not repeated;
    for the other methods that is safe: a conditional put that meets itself is a 412, and callers read back."""
    if method == "POST":
        return answer.cut is not None and answer.cut.args[0] in _NOT_SENT
    return answer.cut is not None or answer.status in _PASSING


def _silent(answer: Answer) -> bool:
    return answer.cut is not None and answer.cut.args[0] == pycurl.E_OPERATION_TIMEDOUT


def _line(name: str, value: str) -> bytes:
    """A header as libcurl takes it; one without a value is left out."""
    if _CONTROL.search(value):
        raise InvalidSpec(f"{name} has a control character: {value[:100]!r}", hint="HTTP cannot carry it.")
    return f"{name}: {value}".encode()


def _quote(text: str) -> str:
    return urllib.parse.quote(text, safe="~")


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
