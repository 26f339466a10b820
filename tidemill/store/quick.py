"""The quick driver: obstore, for single objects with plain keys (0.2 ms of CPU a call; the minio SDK takes 0.6 ms).

One obstore client for each bucket, made at first use. Its own retries are bounded: five within 10 s, which outlasts a
store that restarts (one second), and the next byte must come within 12 s. Conditional puts on SeaweedFS wait for each
other, three or more contenders up to 10 s; only therefore is it that long. Not for use after a fork: build a new one.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotModifiedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import S3Store as Client

from tidemill.settings import StoreSettings
from tidemill.store.api import ObjectInfo
from tidemill.store.download import CHUNK_BYTES, Opened
from tidemill.store.keys import check_bucket
from tidemill.store.listing import bare
from tidemill.store.signed import error_of, unavailable

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult, PutMode

CONNECT_S = 3
READ_S = 12
RETRY_S = 10
_STATUS = re.compile(r"status code: (\d{3})")
_ATTRIBUTES = {
    "Content-Disposition",
    "Content-Encoding",
    "Content-Language",
    "Content-Type",
    "Cache-Control",
    "Storage-Class",
}


@dataclass(frozen=True)
class _Credentials:
    """Given to obstore as a callable, which keeps the AWS_* variables of the environment out of our requests."""

    access_key: str
    secret_key: str

    def __call__(self) -> Any:
        return {"access_key_id": self.access_key, "secret_access_key": self.secret_key, "expires_at": None}


class Quick:
    """obstore behind our values and errors. Thread-safe."""

    def __init__(self, settings: StoreSettings) -> None:
        self._settings = settings
        self._clients: dict[str, Client] = {}
        self._lock = threading.Lock()

    def head(self, bucket: str, key: str, version_id: str | None) -> ObjectInfo:
        options: GetOptions = {"head": True}
        if version_id is not None:
            options["version"] = version_id
        with _translated(bucket, key):
            return _info(bucket, key, obstore.get(self._client(bucket), key, options=options), version_id)

    def get(self, bucket: str, key: str, max_bytes: int | None) -> bytes:
        with _translated(bucket, key):
            client = self._client(bucket)
            answer = obstore.get(client, key)
            if max_bytes is None or answer.meta["size"] <= max_bytes:
                return bytes(answer.bytes())
            if max_bytes <= 0:
                return b""
            return bytes(obstore.get_range(client, key, start=0, end=max_bytes))

    def open(self, bucket: str, key: str, offset: int, etag: str | None, version_id: str | None) -> Opened:
        options: GetOptions = {}
        if offset:
            options["range"] = {"offset": offset}
        if etag is not None:
            options["if_match"] = f'"{etag}"'
        if version_id is not None:
            options["version"] = version_id
        with _translated(bucket, key):
            answer = obstore.get(self._client(bucket), key, options=options)
            return Opened(answer.meta["size"], _info(bucket, key, answer, version_id), _chunks(bucket, key, answer))

    def put(
        self,
        bucket: str,
        key: str,
        body: bytes,
        content_type: str | None,
        metadata: Mapping[str, str],
        if_none_match: bool,
        if_match: str | None,
    ) -> str:
        mode: PutMode = "create" if if_none_match else "overwrite"
        if if_match is not None:
            mode = {"e_tag": f'"{if_match}"'}
        attributes = {"Content-Type": content_type or "application/octet-stream", **metadata}
        with _translated(bucket, key):
            done = obstore.put(self._client(bucket), key, body, attributes=attributes, mode=mode, use_multipart=False)
            return bare(done["e_tag"] or "")

    def delete(self, bucket: str, key: str) -> None:
        with _translated(bucket, key):
            obstore.delete(self._client(bucket), key)

    def _client(self, bucket: str) -> Client:
        client = self._clients.get(bucket)
        if client is not None:
            return client
        with self._lock:
            if bucket not in self._clients:
                self._clients[bucket] = self._connect(bucket)
            return self._clients[bucket]

    def _connect(self, bucket: str) -> Client:
        check_bucket(bucket)
        settings = self._settings
        options: dict[str, Any] = {
            "allow_http": True,
            "connect_timeout": dt.timedelta(seconds=CONNECT_S),
            "read_timeout": dt.timedelta(seconds=READ_S),
            # The whole of a request; its default of 30 s would cut every download of some gigabytes.
            "timeout": dt.timedelta(days=1),
        }
        if authorities := os.environ.get("SSL_CERT_FILE"):
            with open(authorities, "rb") as file:
                options["root_certificate"] = file.read()
        return Client(
            bucket,
            endpoint=settings.endpoint,
            # obstore reads AWS_* for all that is not given, and this name wins over `endpoint`.
            aws_endpoint_url_s3=settings.endpoint,
            region=settings.region,
            virtual_hosted_style_request=False,
            credential_provider=_Credentials(settings.access_key, settings.secret_key.get_secret_value()),
            client_options=options,  # type: ignore[arg-type]  # built in two steps
            retry_config={
                "max_retries": 5,
                "retry_timeout": dt.timedelta(seconds=RETRY_S),
                "backoff": {
                    "init_backoff": dt.timedelta(milliseconds=200),
                    "max_backoff": dt.timedelta(seconds=2),
                    "base": 2,
                },
            },
        )


def _info(bucket: str, key: str, answer: GetResult, version_id: str | None) -> ObjectInfo:
    meta, attributes = answer.meta, answer.attributes
    return ObjectInfo(
        bucket=bucket,
        key=key,
        size=meta["size"],
        etag=bare(meta["e_tag"] or ""),
        last_modified=int(meta["last_modified"].timestamp()),
        version_id=meta["version"] or version_id,
        content_type=attributes.get("Content-Type"),
        metadata={name.lower(): value for name, value in attributes.items() if name not in _ATTRIBUTES},
    )


def _chunks(bucket: str, key: str, answer: GetResult) -> Iterator[bytes]:
    with _translated(bucket, key):
        yield from answer.stream(min_chunk_size=CHUNK_BYTES)


@contextlib.contextmanager
def _translated(bucket: str, key: str) -> Iterator[None]:
    place = f"{bucket}/{key[:100]}"
    try:
        yield
    except FileNotFoundError as error:
        raise error_of(404, place, str(error)[:300]) from error
    except (AlreadyExistsError, PreconditionError, NotModifiedError) as error:
        raise error_of(412, place, str(error)[:300]) from error
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise error_of(403, place, _first_line(error)) from error
    except BaseError as error:
        status = _STATUS.search(str(error))
        if status is not None:
            raise error_of(int(status[1]), place, _first_line(error)) from error
        raise unavailable(f"{place}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n\nDebug source")[0][:500]
