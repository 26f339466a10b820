"""Which keys a store can keep."""

from __future__ import annotations

import re

from tidemill.errors import InvalidSpec

MAX_KEY_BYTES = 1024
_BUCKET = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]\Z")


def check(key: str) -> str:
    """Gives the key back. Raises `InvalidSpec` for one that S3 stores refuse, or that HTTP clients rewrite."""
    try:
        size = len(key.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise _refused(key, "is not valid Unicode") from error
    if not 0 < size <= MAX_KEY_BYTES:
        raise _refused(key, f"has {size} bytes; 1 to {MAX_KEY_BYTES} are possible")
    if "\0" in key:
        raise _refused(key, "has a NUL character")
    if any(segment in (".", "..") for segment in key.split("/")):
        raise _refused(key, "has a segment . or .., which HTTP clients and stores resolve to another key")
    return key


def check_bucket(bucket: str) -> str:
    """Gives the name back. Raises `InvalidSpec` for one that no store has: some have a meaning in an address."""
    if not _BUCKET.match(bucket):
        raise InvalidSpec(
            f"{bucket[:100]!r} is not the name of a bucket",
            code="invalid_bucket",
            hint="Use 3 to 63 lower-case letters, digits, dots and hyphens.",
        )
    return bucket


def _refused(key: str, why: str) -> InvalidSpec:
    return InvalidSpec(f"the key {key[:100]!r} {why}", code="invalid_key", hint="Use another key.")
