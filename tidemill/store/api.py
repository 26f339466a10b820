"""What a store promises, for the real one and its twin in memory.

Keys are text, exactly as the store gives them in a listing: nothing here decodes, normalises or joins them. ETags carry
no quotes. Times are whole seconds since 1970 (UTC), rounded down, so that a listing and a HEAD agree.

Errors of every call: `NotFound` (no such bucket or object), `PreconditionFailed`, `NotAllowed`, `InvalidSpec` (a key
that no store can keep), and `StoreUnavailable` when the store did not answer. After a `StoreUnavailable` of a write
nobody knows whether it happened: read back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

PAGE = 1000  # objects in one page of a listing, at most


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object as HEAD or a listing shows it; `size` in bytes. Listings know neither type nor metadata.

    `metadata` has lower-case names without `x-amz-meta-`.
    """

    bucket: str
    key: str
    size: int
    etag: str
    last_modified: int
    version_id: str | None = None
    content_type: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Downloaded:
    """What was written to the file: its size in bytes, its SHA-256 in hex, and what the object says of itself."""

    size: int
    sha256: str
    content_type: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A multipart upload that was neither completed nor aborted; `begun_at` in seconds since 1970 (UTC)."""

    key: str
    upload_id: str
    begun_at: float


class Store(Protocol):
    """An S3 store. Every method may be called from any thread."""

    @property
    def name(self) -> str:
        """The store's name in the settings: a part of each object's identity."""

    def head(self, bucket: str, key: str, version_id: str | None = None) -> ObjectInfo | None:
        """The object's facts, or None when there is none."""

    def get(self, bucket: str, key: str, *, max_bytes: int | None = None) -> bytes:
        """The object's content, at most its first `max_bytes`. Raises `NotFound`."""

    def download(
        self, bucket: str, key: str, path: Path, *, etag: str | None = None, version_id: str | None = None
    ) -> Downloaded:
        """Writes the object into a new file, in constant memory; a cut connection is resumed where it broke.

        `path` is the whole name of the file: it must not exist (`FileExistsError`), its folder must. Pinned by
        `version_id`, or by `etag`: `PreconditionFailed` when the object is another one now, `NotFound` when it is gone.
        A download that fails leaves no file.
        """

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
        """Writes an object and gives its ETag; large bodies go in parts, in constant memory.

        `if_none_match`: only when there is none. `if_match`: only over the object with this ETag. Else
        `PreconditionFailed`. With a condition `bytes` go in one request, whatever their size: of several writers
        exactly one wins. A file of more than a part does not decide that: on SeaweedFS writers that end at the same
        moment may all win.
        """

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
        """Copies inside the store, with the given type and metadata, and gives the ETag of the copy."""

    def delete(self, bucket: str, key: str) -> None:
        """Deletes an object; one that is missing is fine."""

    def pages(self, bucket: str, prefix: str = "", start_after: str | None = None) -> Iterator[list[ObjectInfo]]:
        """The objects of a prefix, up to 1,000 each time, in the order of this store (not always that of bytes)."""

    def unfinished(self, bucket: str) -> list[Unfinished]:
        """Multipart uploads that are under way or were left behind: some of them, all when they are few."""

    def drop_upload(self, bucket: str, upload: Unfinished) -> None:
        """Drops the parts of an unfinished upload; one that is gone is fine."""

    def presign_get(self, bucket: str, key: str, expires_s: int = 3600) -> str:
        """An address that reads the object without credentials, for at most 7 days."""

    def presign_put(self, bucket: str, key: str, expires_s: int = 3600) -> str:
        """An address that writes the object without credentials, for at most 7 days."""

    def bucket_exists(self, bucket: str) -> bool: ...

    def ensure_bucket(self, bucket: str) -> None:
        """Makes the bucket when it is missing."""

    def buckets(self) -> list[str]: ...

    def watch(self, bucket: str, arn: str, prefixes: Sequence[str]) -> bool:
        """Makes the store send creations below these prefixes to the target of that name; all other rules of the
        bucket stay. Gives whether something had to be changed.

        Raises `ServiceUnavailable` (code `no_notifications`) for a store that keeps no rules, `InvalidSpec` when it
        refuses them, for example because it knows no such target.
        """

    def probe_conditional_put(self, bucket: str) -> None:
        """Raises `ServiceUnavailable` with the reason when the store ignores If-None-Match or If-Match.

        Who wins a job is decided by them alone, so a store without them cannot be used.
        """

    def ping(self) -> float:
        """Seconds of one round trip."""
