"""Signed S3 requests with any header, for what neither driver offers.

The minio SDK has no public conditional PUT: an `If-None-Match` given as metadata becomes user metadata and the object
is overwritten. obstore refuses some keys, lists by whole segments only, and copies without new metadata. So listings,
copies, multipart uploads and odd keys are sent here: urllib3 carries them, `minio.signer` signs them, and the answer's
status becomes one of our errors. This module and `s3.py` alone import the SDK.

Each attempt waits 3 s for a connection and 10 s for the next byte; two are made when the answer fails to come, so a
dead store is known after some 20 s, a closed port after one.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import re
import urllib.parse
from collections.abc import Mapping

import certifi
import urllib3
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

CONNECT_S = 3.0
READ_S = 10.0
SLOW_READ_S = 60.0
BACKOFF_S = 0.2
_EMPTY = hashlib.sha256(b"").hexdigest()
_PROBLEM = re.compile(rb"<(Code|Message)>([^<]*)</\1>")


def pool() -> urllib3.PoolManager:
    """Connections with bounded waits and few retries. SSL_CERT_FILE names the authorities, as for every client."""
    # Reading again is safe for all methods: a conditional PUT that meets itself is a 412, and callers read back.
    retry = urllib3.Retry(
        total=3,
        connect=3,
        read=1,
        status=3,
        other=0,
        redirect=0,
        backoff_factor=BACKOFF_S,
        backoff_jitter=BACKOFF_S,
        status_forcelist=(500, 502, 503, 504),
        allowed_methods=("GET", "HEAD", "PUT", "DELETE"),
        raise_on_status=False,
    )
    return urllib3.PoolManager(
        maxsize=64,
        timeout=urllib3.Timeout(connect=CONNECT_S, read=READ_S),
        retries=retry,
        cert_reqs="CERT_REQUIRED",
        ca_certs=os.environ.get("SSL_CERT_FILE") or certifi.where(),
    )


class SignedRequests:
    """Sends requests to one store. Thread-safe."""

    def __init__(self, settings: StoreSettings, http: urllib3.PoolManager) -> None:
        self._endpoint = urllib.parse.urlsplit(settings.endpoint)
        self._region = settings.region
        self._credentials = Credentials(settings.access_key, settings.secret_key.get_secret_value())
        self._http = http

    def send(
        self,
        method: str,
        bucket: str = "",
        key: str = "",
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        stream: bool = False,
        slow: bool = False,
    ) -> urllib3.BaseHTTPResponse:
        """One request; gives the answer of a 2xx, or raises one of our errors.

        With `stream` the content is not read yet; the caller releases the connection. `slow` waits longer for the
        first byte, for what the store does at length (a server-side copy).
        """
        if bucket or key:
            check_bucket(bucket)
        url = self._url(bucket, key, query or {})
        signed = self._sign(method, url, dict(headers or {}), body)
        timeout = urllib3.Timeout(connect=CONNECT_S, read=SLOW_READ_S) if slow else None
        extra = {"timeout": timeout} if timeout else {}
        try:
            answer = self._http.urlopen(
                method,
                urllib.parse.urlunsplit(url),
                body=body,
                headers=signed,
                preload_content=not stream,
                redirect=False,
                **extra,
            )
            if 200 <= answer.status < 300:
                return answer
            text = answer.data
        except urllib3.exceptions.HTTPError as error:
            raise unavailable(f"{method} {bucket}/{key[:100]}: {error}") from error
        raise _refusal(method, bucket, key, answer.status, text or b"")

    def _url(self, bucket: str, key: str, query: Mapping[str, str]) -> urllib.parse.SplitResult:
        path = "/" + "/".join(urllib.parse.quote(part, safe="/~") for part in (bucket, key) if part)
        pairs = sorted((_quote(name), _quote(value)) for name, value in query.items())
        text = "&".join(f"{name}={value}" for name, value in pairs)
        return urllib.parse.SplitResult(self._endpoint.scheme, self._endpoint.netloc, path, text, "")

    def _sign(self, method: str, url: urllib.parse.SplitResult, headers: dict[str, str], body: bytes) -> dict[str, str]:
        now = dt.datetime.now(dt.UTC)
        if not body:
            digest = _EMPTY
        elif url.scheme == "https":
            digest = "UNSIGNED-PAYLOAD"  # TLS guards it, and hashing a large part costs as much as sending it
        else:
            digest = hashlib.sha256(body).hexdigest()
        headers |= {
            "Host": url.netloc,
            "x-amz-content-sha256": digest,
            "x-amz-date": now.strftime("%Y%m%dT%H%M%SZ"),
        }
        signed = sign_v4_s3(
            method=method,
            url=url,
            region=self._region,
            headers={**headers},
            credentials=self._credentials,
            content_sha256=digest,
            date=now,
        )
        return {name: str(value) for name, value in signed.items()}


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
