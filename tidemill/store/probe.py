"""Does the store keep its conditions? Without them two attempts of one job could both win."""

from __future__ import annotations

import secrets

from tidemill.errors import PreconditionFailed, ServiceUnavailable
from tidemill.store.api import Store


def probe_conditional_put(store: Store, bucket: str) -> None:
    """Tries both conditions on an object of its own. Raises `ServiceUnavailable` when one is ignored or refused."""
    key = f"probe/{secrets.token_hex(8)}"
    try:
        try:
            etag = store.put(bucket, key, b"first", if_none_match=True)
        except PreconditionFailed as error:
            raise _unfit(f"it refuses If-None-Match on a key that is free ({error})") from error
        _must_refuse(store, bucket, key, "If-None-Match", if_none_match=True)
        _must_refuse(store, bucket, key, "If-Match", if_match="0" * 32)
        try:
            store.put(bucket, key, b"second", if_match=etag)
        except PreconditionFailed as error:
            raise _unfit(f"it refuses If-Match with the right ETag ({error})") from error
        if store.get(bucket, key) != b"second":
            raise _unfit("it says yes to a put and keeps the old content")
    finally:
        store.delete(bucket, key)


def _must_refuse(
    store: Store, bucket: str, key: str, name: str, *, if_none_match: bool = False, if_match: str | None = None
) -> None:
    try:
        store.put(bucket, key, b"other", if_none_match=if_none_match, if_match=if_match)
    except PreconditionFailed:
        return
    raise _unfit(f"it ignores {name}")


def _unfit(why: str) -> ServiceUnavailable:
    return ServiceUnavailable(
        f"this store cannot hold jobs: {why}",
        code="no_conditional_put",
        hint="Use a store with conditional writes: AWS S3, MinIO since 2024-09, SeaweedFS 4, versitygw.",
    )
