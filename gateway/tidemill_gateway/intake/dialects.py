"""Bucket events as different stores send them: a body in, hints out. No network, no clock.

| store | key in the body | recognised by |
|---|---|---|
| MinIO, RustFS | form-encoded, `/` too; top-level `Key` is `bucket/` + the raw key | `Key` beside `Records` |
| plain AWS | form-encoded, `/` left | `Records`, and nothing of the others |
| Ceph RGW | raw | `ceph:s3` |
| versitygw | raw; the ETag keeps its quotes; a `s3:TestEvent` at start | the bucket's `arn` ends with the key |
| SeaweedFS | raw path `/buckets/BUCKET/KEY` | `event_type` and `message` |

A raw key with `+` or `%` cannot be told from an encoded one, so an event carries every reading, likeliest first, and
whoever takes it asks the store which one is there. Sizes and ETags are hints too.

What is no new content is left out: deletes, tags, retention, folders, parts of multipart uploads, SeaweedFS' own
folders, and its updates that change only attributes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_plus

from pydantic_core import from_json

from tidemill.models import BucketEvent

_NEW_CONTENT = frozenset(
    f"ObjectCreated:{how}" for how in ("Put", "Post", "Copy", "CompleteMultipartUpload", "MultipartUploadCompleted")
)
_MOST_RECORDS = 1000  # stores send one, or a few
_SEAWEED_ROOT = "/buckets/"
# Folders that SeaweedFS keeps inside each bucket for itself.
_SEAWEED_INSIDE = (".uploads", ".versions", ".seaweedfs")


@dataclass(frozen=True, slots=True)
class Reading:
    """What a body says: objects to look at, and why the body, or a part of it, is junk (None: it is not)."""

    events: list[BucketEvent] = field(default_factory=list)
    junk: str | None = None


class _Junk(Exception):
    """A body, or a record in it, that no dialect can read."""


def read(body: bytes) -> Reading:
    """Read one body of any dialect. Never raises: what cannot be read is junk, with the reason."""
    if not body.strip():
        return Reading()  # a probe
    try:
        document = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        return Reading(junk=f"not JSON: {error}"[:300])
    if not isinstance(document, dict):
        return Reading(junk=f"a JSON {type(document).__name__} instead of an object")
    if "Records" in document:
        return _records(document)
    if "event_type" in document and "message" in document:
        return _one(_seaweed, document)
    if document.get("Event") == "s3:TestEvent":
        return Reading()
    return Reading(junk="no dialect has these fields: " + ", ".join(sorted(map(str, document)))[:200])


def _one(dialect: Any, document: dict[str, Any]) -> Reading:
    try:
        return Reading(list(dialect(document)))
    except _Junk as error:
        return Reading(junk=str(error))


def _records(document: dict[str, Any]) -> Reading:
    """The S3 family: one bad record does not spoil the others."""
    records = document["Records"]
    if not isinstance(records, list):
        return Reading(junk="Records is no list")
    events: list[BucketEvent] = []
    junk: str | None = None
    for record in records[:_MOST_RECORDS]:
        try:
            events.extend(_record(record, document if len(records) == 1 else {}))
        except _Junk as error:
            junk = str(error)
    if len(records) > _MOST_RECORDS:
        junk = f"{len(records)} records; those after {_MOST_RECORDS} are left to the next listing"
    return Reading(events, junk)


def _record(record: Any, document: dict[str, Any]) -> Iterator[BucketEvent]:
    name = _text(_dict(record, "a record"), "eventName")
    if name.removeprefix("s3:") not in _NEW_CONTENT:
        return
    s3 = _dict(record.get("s3"), "s3")
    holder = _dict(s3.get("bucket"), "s3.bucket")
    thing = _dict(s3.get("object"), "s3.object")
    bucket, key = _text(holder, "name"), _text(thing, "key")
    yield BucketEvent(
        bucket=bucket,
        keys=_readings(bucket, key, record.get("eventSource"), holder.get("arn"), document.get("Key")),
        size=_size(thing.get("size")),
        etag=_etag(thing.get("eTag")),
    )


def _readings(bucket: str, key: str, source: Any, arn: Any, top: Any) -> tuple[str, ...]:
    decoded = unquote_plus(key)
    if isinstance(top, str) and top.startswith(f"{bucket}/") and len(top) > len(bucket) + 1:
        return _distinct(top[len(bucket) + 1 :], decoded)
    raw_first = source == "ceph:s3" or (isinstance(arn, str) and arn.endswith(f"/{bucket}/{key}"))
    return _distinct(key, decoded) if raw_first else _distinct(decoded, key)


def _seaweed(document: dict[str, Any]) -> Iterator[BucketEvent]:
    message = _dict(document["message"], "message")
    kind, path = _text(document, "event_type"), _text(document, "key")
    if kind not in ("create", "update", "rename"):
        return
    new = message.get("new_entry")
    if new is None:
        return
    new, old = _dict(new, "new_entry"), message.get("old_entry")
    if new.get("is_directory"):
        return
    if kind == "update" and isinstance(old, dict) and _content(old) == _content(new):
        return
    parent = message.get("new_parent_path")
    if kind == "rename" and isinstance(parent, str):
        path = f"{parent}/{_text(new, 'name')}"  # the key of a rename is the old path
    if not path.startswith(_SEAWEED_ROOT):
        return
    bucket, _, key = path.removeprefix(_SEAWEED_ROOT).partition("/")
    if not bucket or bucket.startswith(".") or not key or key.split("/", 1)[0] in _SEAWEED_INSIDE:
        return
    attributes = new.get("attributes")
    # No file_size means empty, but also content kept inside the entry: then the size is not known here.
    size = _size(attributes.get("file_size")) if isinstance(attributes, dict) else None
    yield BucketEvent(bucket=bucket, keys=(key,), size=size)


def _content(entry: dict[str, Any]) -> tuple[Any, ...]:
    """What changes with the content of a SeaweedFS entry, and with nothing else.

    The chunks' ids, as they are new for each PUT (also of the same bytes); a tag keeps them. A small object may lie in
    the entry itself (`content`); then the modification time tells.
    """
    chunks = entry.get("chunks")
    ids = [
        (chunk.get("modified_ts_ns"), chunk.get("e_tag"), chunk.get("size"))
        for chunk in (chunks if isinstance(chunks, list) else [])
        if isinstance(chunk, dict)
    ]
    attributes = entry.get("attributes")
    facts = attributes if isinstance(attributes, dict) else {}
    return ids, entry.get("content"), facts.get("md5"), facts.get("mtime"), facts.get("mtime_ns")


def _dict(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Junk(f"{name} is no object")
    return value


def _text(holder: dict[str, Any], name: str) -> str:
    value = holder.get(name)
    if not isinstance(value, str) or not value:
        raise _Junk(f"{name} is missing or no text")
    return value


def _size(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None


def _etag(value: Any) -> str | None:
    return value.strip('"') or None if isinstance(value, str) else None


def _distinct(first: str, second: str) -> tuple[str, ...]:
    return (first,) if first == second else (first, second)
