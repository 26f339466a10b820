"""The real store: every call as signed requests (`signed.py`); the minio SDK only for presigned addresses."""

from __future__ import annotations

import datetime as dt
import functools
import html
import io
import itertools
import re
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import BinaryIO

from minio import Minio

from tidemill.errors import InvalidSpec, NotAllowed, NotFound, PreconditionFailed, ServiceUnavailable
from tidemill.settings import StoreSettings
from tidemill.store import keys, listing, notifications, unfinished
from tidemill.store.api import Downloaded, ObjectInfo, Unfinished
from tidemill.store.download import Fetched, Write, download
from tidemill.store.multipart import COPY_BYTES, PART_BYTES, Upload, blocks, part_size
from tidemill.store.probe import probe_conditional_put
from tidemill.store.signed import SignedRequests, unavailable
from tidemill.store.transfer import Answer

_META = "x-amz-meta-"
_NOTIFICATION = {"notification": ""}


class S3Store:
    """An S3 store. Thread-safe; made without a request, one for each process (not across a fork)."""

    def __init__(self, settings: StoreSettings) -> None:
        for address in (settings.endpoint, settings.public_endpoint or settings.endpoint):
            _check_address(address)
        self._settings = settings
        self._requests = SignedRequests(settings)

    @property
    def name(self) -> str:
        return self._settings.name

    # -- single objects ------------------------------------------------------------------------------------------
    def head(self, bucket: str, key: str, version_id: str | None = None) -> ObjectInfo | None:
        try:
            answer = self._requests.send("HEAD", bucket, keys.check(key), query=_version(version_id))
        except NotFound:
            return None
        return _info(bucket, key, answer, _length(answer), version_id)

    def get(self, bucket: str, key: str, *, max_bytes: int | None = None) -> bytes:
        keys.check(key)
        if max_bytes is None:
            return self._requests.send("GET", bucket, key).data
        headers = {"Range": f"bytes=0-{max(1, max_bytes) - 1}"}
        answer = self._requests.send("GET", bucket, key, headers=headers, accept=(416,))
        # An empty object has no first byte.
        return b"" if answer.status == 416 else answer.data[: max(0, max_bytes)]

    def download(
        self, bucket: str, key: str, path: Path, *, etag: str | None = None, version_id: str | None = None
    ) -> Downloaded:
        keys.check(key)
        # A version never changes, so its own ETag is enough.
        pin = None if version_id else etag

        def fetch(offset: int, now: str | None, write: Write) -> Fetched:
            return self._fetch(bucket, key, offset, now, version_id, write)

        return download(fetch, path, pin)

    def put(
        self,
        bucket: str,
        key: str,
        body: bytes | Path | BinaryIO,
        *,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
        if_none_match: bool = False,
        if_match: str | None = None,
    ) -> str:
        keys.check(key)
        if isinstance(body, Path):
            with body.open("rb") as file:
                size = file.seek(0, io.SEEK_END)
                file.seek(0)
                return self._put_file(bucket, key, file, size, content_type, metadata, if_none_match, if_match)
        # The end of an upload in parts is no place for a decision: SeaweedFS does not look and write in one step there.
        if isinstance(body, bytes) and (if_none_match or if_match is not None or len(body) <= PART_BYTES):
            return self._put_bytes(bucket, key, body, content_type, metadata, if_none_match, if_match)
        source = io.BytesIO(body) if isinstance(body, bytes) else body
        return self._put_file(bucket, key, source, None, content_type, metadata, if_none_match, if_match)

    def copy(
        self,
        src_bucket: str,
        src_key: str,
        dst_bucket: str,
        dst_key: str,
        *,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> str:
        source = self.head(src_bucket, src_key)
        if source is None:
            raise NotFound(f"the store has no {src_bucket}/{src_key[:100]}")
        keys.check(dst_key)
        where = urllib.parse.quote(f"{src_bucket}/{src_key}", safe="/~")
        pinned = {"x-amz-copy-source": f"/{where}", "x-amz-copy-source-if-match": f'"{source.etag}"'}
        headers = _described(content_type, metadata)
        if source.size <= COPY_BYTES:
            headers |= {**pinned, "x-amz-metadata-directive": "REPLACE"}
            answer = self._requests.send("PUT", dst_bucket, dst_key, headers=headers, slow=True)
            return _copied(answer.data)
        upload = Upload(self._requests, dst_bucket, dst_key, headers)
        try:
            return upload.complete(upload.copy_parts(pinned, source.size), {})
        except BaseException:
            upload.abort()
            raise

    def delete(self, bucket: str, key: str) -> None:
        try:
            self._requests.send("DELETE", bucket, keys.check(key))
        except NotFound:
            return

    def pages(self, bucket: str, prefix: str = "", start_after: str | None = None) -> Iterator[list[ObjectInfo]]:
        keys.check_bucket(bucket)
        return listing.pages(self._requests, bucket, prefix, start_after)

    def unfinished(self, bucket: str) -> list[Unfinished]:
        return unfinished.unfinished(self._requests, bucket)

    def drop_upload(self, bucket: str, upload: Unfinished) -> None:
        unfinished.drop(self._requests, bucket, upload)

    # -- buckets and addresses -----------------------------------------------------------------------------------
    def presign_get(self, bucket: str, key: str, expires_s: int = 3600) -> str:
        return str(
            self._public().presigned_get_object(bucket, keys.check(key), expires=dt.timedelta(seconds=expires_s))
        )

    def presign_put(self, bucket: str, key: str, expires_s: int = 3600) -> str:
        return str(
            self._public().presigned_put_object(bucket, keys.check(key), expires=dt.timedelta(seconds=expires_s))
        )

    def bucket_exists(self, bucket: str) -> bool:
        try:
            self._requests.send("HEAD", keys.check_bucket(bucket))
        except NotFound:
            return False
        return True

    def ensure_bucket(self, bucket: str) -> None:
        if self.bucket_exists(bucket):
            return
        region, body = self._settings.region, b""
        if region != "us-east-1":  # the one region that AWS wants left out
            place = f"<LocationConstraint>{html.escape(region)}</LocationConstraint>"
            body = f"<CreateBucketConfiguration>{place}</CreateBucketConfiguration>".encode()
        try:
            self._requests.send("PUT", bucket, body=body)
        except PreconditionFailed as error:  # 409: somebody made it just now, or it is somebody else's
            if not self.bucket_exists(bucket):
                raise NotAllowed(
                    f"the bucket {bucket} belongs to somebody else", hint="Use another name for the bucket."
                ) from error

    def buckets(self) -> list[str]:
        found = re.findall(rb"<Bucket>.*?<Name>([^<]*)</Name>", self._requests.send("GET").data, re.DOTALL)
        return [html.unescape(name.decode()) for name in found]

    def watch(self, bucket: str, arn: str, prefixes: Sequence[str]) -> bool:
        answer = self._requests.send("GET", bucket, query=_NOTIFICATION)
        # SeaweedFS answers a GET with an empty document, and takes a PUT for the making of a bucket.
        if "seaweed" in answer.headers.get("server", "").lower():
            raise _no_rules("SeaweedFS has no notification rules of buckets")
        wanted = notifications.merged(answer.data, arn, prefixes)
        if wanted is None:
            return False
        self._requests.send("PUT", bucket, query=_NOTIFICATION, body=wanted)
        kept = self._requests.send("GET", bucket, query=_NOTIFICATION).data
        if notifications.merged(kept, arn, prefixes) is not None:
            raise _no_rules("it says yes to the notification rules of a bucket and does not keep them")
        return True

    def probe_conditional_put(self, bucket: str) -> None:
        probe_conditional_put(self, bucket)

    def ping(self) -> float:
        begin = time.perf_counter()
        self.bucket_exists(self._settings.bucket)
        return time.perf_counter() - begin

    # -- inside --------------------------------------------------------------------------------------------------
    def _fetch(
        self, bucket: str, key: str, offset: int, etag: str | None, version_id: str | None, write: Write
    ) -> Fetched:
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        if etag is not None:
            headers["If-Match"] = f'"{etag}"'
        written = 0

        def begin(answer: Answer) -> Write:
            _check_range(answer, offset)
            return count

        def count(chunk: bytes) -> None:
            nonlocal written
            write(chunk)
            written += len(chunk)

        answer = self._requests.send("GET", bucket, key, query=_version(version_id), headers=headers, begin=begin)
        _check_range(answer, offset)
        size = _total(answer)
        if size is None and answer.cut is None:
            size = offset + written  # an answer of unknown length that came to its end
        return Fetched(size, _info(bucket, key, answer, size or 0, version_id))

    def _put_bytes(
        self,
        bucket: str,
        key: str,
        body: bytes,
        content_type: str | None,
        metadata: Mapping[str, str] | None,
        if_none_match: bool,
        if_match: str | None,
    ) -> str:
        headers = _described(content_type, metadata) | _conditions(if_none_match, if_match)
        answer = self._requests.send("PUT", bucket, key, headers=headers, body=body)
        return listing.bare(answer.headers.get("etag", ""))

    def _put_file(
        self,
        bucket: str,
        key: str,
        file: BinaryIO,
        size: int | None,
        content_type: str | None,
        metadata: Mapping[str, str] | None,
        if_none_match: bool,
        if_match: str | None,
    ) -> str:
        part = part_size(size)
        contents = blocks(file, part)
        first = next(contents, b"")
        if len(first) < part:
            return self._put_bytes(bucket, key, first, content_type, metadata, if_none_match, if_match)
        if if_none_match and self.head(bucket, key) is not None:
            raise PreconditionFailed(f"{bucket}/{key[:100]} is there already")  # told before gigabytes travel in vain
        upload = Upload(self._requests, bucket, key, _described(content_type, metadata))
        try:
            etags = upload.parts(itertools.chain([first], contents))
            return upload.complete(etags, _conditions(if_none_match, if_match))
        except BaseException:
            upload.abort()
            raise

    def _public(self) -> Minio:
        """The SDK, for the address that clients use: a signature covers the host. Sends nothing, as the region is
        known."""
        address = urllib.parse.urlsplit(self._settings.public_endpoint or self._settings.endpoint)
        return Minio(
            address.netloc,
            self._settings.access_key,
            self._settings.secret_key.get_secret_value(),
            secure=address.scheme == "https",
            region=self._settings.region,
        )


def _no_rules(why: str) -> ServiceUnavailable:
    return ServiceUnavailable(
        f"this store cannot be told to send events: {why}",
        code="no_notifications",
        hint="Leave TIDEMILL_INTAKE__NOTIFY_ARN empty, and let the store send its events by its own configuration.",
    )


def _check_address(address: str) -> None:
    parts = urllib.parse.urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.path.strip("/") or parts.query:
        raise InvalidSpec(
            f"{address!r} is no address of a store",
            hint="Write TIDEMILL_STORE__ENDPOINT as http://host:port or https://host, without a path.",
        )


def _described(content_type: str | None, metadata: Mapping[str, str] | None) -> dict[str, str]:
    headers = {"Content-Type": content_type or "application/octet-stream"}
    return headers | {_META + name: value for name, value in (metadata or {}).items()}


def _conditions(if_none_match: bool, if_match: str | None) -> dict[str, str]:
    headers = {"If-None-Match": "*"} if if_none_match else {}
    return headers if if_match is None else {**headers, "If-Match": f'"{if_match}"'}


def _version(version_id: str | None) -> dict[str, str]:
    return {"versionId": version_id} if version_id is not None else {}


def _length(answer: Answer) -> int:
    return int(answer.headers.get("content-length", "0"))


def _total(answer: Answer) -> int | None:
    """The size of the whole object, where the answer says it."""
    if answer.status == 206:
        total = answer.headers.get("content-range", "").rpartition("/")[2]
    else:
        total = answer.headers.get("content-length", "")
    return int(total) if total.isdecimal() else None


def _check_range(answer: Answer, offset: int) -> None:
    """What was asked for from a byte on must begin there, or the content would be another one."""
    if not offset:
        return
    if answer.status != 206 or not answer.headers.get("content-range", "").startswith(f"bytes {offset}-"):
        said = answer.headers.get("content-range", "all of it")
        raise unavailable(f"the store was asked for what comes after {offset} bytes, and sends {said[:100]}")


def _info(bucket: str, key: str, answer: Answer, size: int, version_id: str | None) -> ObjectInfo:
    headers = answer.headers
    try:
        etag, last_modified = listing.bare(headers["etag"]), _seconds(headers["last-modified"])
    except (KeyError, ValueError) as error:
        raise unavailable(f"the answer about {bucket}/{key[:100]} is garbled: {error!r}") from error
    return ObjectInfo(
        bucket=bucket,
        key=key,
        size=size,
        etag=etag,
        last_modified=last_modified,
        version_id=headers.get("x-amz-version-id") or version_id,
        content_type=headers.get("content-type"),
        metadata={name[len(_META) :]: value for name, value in headers.items() if name.startswith(_META)},
    )


@functools.lru_cache(1024)
def _seconds(date: str) -> int:
    """An HTTP date as seconds since 1970. The dates of one object are asked for again and again."""
    return int(parsedate_to_datetime(date).timestamp())


def _copied(body: bytes) -> str:
    """The ETag of a copy. AWS may answer 200 and tell of the failure inside."""
    found = re.search(rb"<ETag>([^<]*)</ETag>", body)
    if found is None:
        raise unavailable(f"the copy failed: {body[:300].decode('utf-8', 'replace')}")
    return listing.bare(html.unescape(found[1].decode()))
