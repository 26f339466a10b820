"""A store in memory: the twin of the real one, which passes the same contract suite. For tests of ours and of users."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from tidemill.errors import NotFound, PreconditionFailed
from tidemill.store.api import PAGE, Downloaded, ObjectInfo, Unfinished
from tidemill.store.download import Fetched, Write, download
from tidemill.store.keys import check, check_bucket
from tidemill.store.probe import probe_conditional_put


@dataclass(frozen=True, slots=True)
class _Object:
    info: ObjectInfo
    body: bytes = field(repr=False)


class MemoryStore:
    """Objects in a dict, keys as they come, listings in the order of their bytes; no versions. Thread-safe.

    `clock` gives the seconds since 1970 that objects are stamped with.
    """

    def __init__(self, clock: Callable[[], float] = time.time, name: str = "local") -> None:
        self._clock = clock
        self._name = name
        self._buckets: dict[str, dict[str, _Object]] = {}
        self._lock = threading.RLock()
        self.watched: dict[tuple[str, str], tuple[str, ...]] = {}
        """The prefixes that `watch` was asked for, by bucket and ARN; no event is ever sent."""

        self._uploads: dict[str, dict[str, Unfinished]] = {}

    @property
    def name(self) -> str:
        return self._name

    def head(self, bucket: str, key: str, version_id: str | None = None) -> ObjectInfo | None:
        check(key)
        with self._lock:
            found = self._buckets.get(check_bucket(bucket), {}).get(key)
            return found.info if found else None

    def get(self, bucket: str, key: str, *, max_bytes: int | None = None) -> bytes:
        return self._find(bucket, key).body[:max_bytes]

    def download(
        self, bucket: str, key: str, path: Path, *, etag: str | None = None, version_id: str | None = None
    ) -> Downloaded:
        def fetch(offset: int, pin: str | None, write: Write) -> Fetched:
            found = self._find(bucket, key)
            if pin is not None and found.info.etag != pin:
                raise PreconditionFailed(f"{bucket}/{key[:100]} is another object now")
            write(found.body[offset:])
            return Fetched(found.info.size, found.info)

        return download(fetch, path, etag)

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
        check(key)
        content = body if isinstance(body, bytes) else body.read_bytes() if isinstance(body, Path) else body.read()
        with self._lock:
            objects = self._objects(bucket)
            there = objects.get(key)
            if if_none_match and there is not None:
                raise PreconditionFailed(f"{bucket}/{key[:100]} is there already")
            if if_match is not None and (there is None or there.info.etag != if_match):
                raise PreconditionFailed(f"{bucket}/{key[:100]} is another object now")
            info = ObjectInfo(
                bucket=bucket,
                key=key,
                size=len(content),
                etag=hashlib.md5(content, usedforsecurity=False).hexdigest(),
                last_modified=int(self._clock()),
                content_type=content_type or "application/octet-stream",
                metadata={name.lower(): value for name, value in (metadata or {}).items()},
            )
            objects[key] = _Object(info, content)
            return info.etag

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
        with self._lock:
            body = self._find(src_bucket, src_key).body
            return self.put(dst_bucket, dst_key, body, content_type=content_type, metadata=metadata)

    def delete(self, bucket: str, key: str) -> None:
        check(key)
        with self._lock:
            self._buckets.get(check_bucket(bucket), {}).pop(key, None)

    def begin_upload(self, bucket: str, key: str) -> None:
        """Leave a multipart upload behind, as a process does that dies in the middle of a large put."""
        with self._lock:
            uploads = self._uploads.setdefault(bucket, {})
            upload = Unfinished(check(key), f"upload-{len(uploads) + 1}", self._clock())
            uploads[upload.upload_id] = upload

    def unfinished(self, bucket: str) -> list[Unfinished]:
        self._objects(bucket)
        with self._lock:
            return list(self._uploads.get(bucket, {}).values())

    def drop_upload(self, bucket: str, upload: Unfinished) -> None:
        with self._lock:
            self._uploads.get(bucket, {}).pop(upload.upload_id, None)

    def pages(self, bucket: str, prefix: str = "", start_after: str | None = None) -> Iterator[list[ObjectInfo]]:
        with self._lock:
            found = sorted(
                (item.info for key, item in self._objects(bucket).items() if key.startswith(prefix)),
                key=lambda info: info.key.encode(),
            )
        after = (start_after or "").encode()
        found = [info for info in found if info.key.encode() > after]
        for start in range(0, len(found), PAGE):
            # Listings of S3 know neither type nor metadata.
            yield [
                ObjectInfo(info.bucket, info.key, info.size, info.etag, info.last_modified)
                for info in found[start : start + PAGE]
            ]

    def presign_get(self, bucket: str, key: str, expires_s: int = 3600) -> str:
        return f"memory://{bucket}/{check(key)}?method=GET&expires={expires_s}"

    def presign_put(self, bucket: str, key: str, expires_s: int = 3600) -> str:
        return f"memory://{bucket}/{check(key)}?method=PUT&expires={expires_s}"

    def bucket_exists(self, bucket: str) -> bool:
        return check_bucket(bucket) in self._buckets

    def ensure_bucket(self, bucket: str) -> None:
        with self._lock:
            self._buckets.setdefault(check_bucket(bucket), {})

    def buckets(self) -> list[str]:
        return sorted(self._buckets)

    def watch(self, bucket: str, arn: str, prefixes: Sequence[str]) -> bool:
        self._objects(bucket)
        wanted = tuple(sorted(set(prefixes)))
        with self._lock:
            before = self.watched.get((bucket, arn))
            self.watched[bucket, arn] = wanted
        return before != wanted

    def probe_conditional_put(self, bucket: str) -> None:
        probe_conditional_put(self, bucket)

    def ping(self) -> float:
        return 0.0

    def _objects(self, bucket: str) -> dict[str, _Object]:
        if check_bucket(bucket) not in self._buckets:
            raise NotFound(f"the store has no bucket {bucket}")
        return self._buckets[bucket]

    def _find(self, bucket: str, key: str) -> _Object:
        with self._lock:
            found = self._objects(bucket).get(check(key))
        if found is None:
            raise NotFound(f"the store has no {bucket}/{key[:100]}")
        return found
