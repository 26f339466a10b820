"""A bucket event, whatever store sent it: a hint that says where to look."""

from __future__ import annotations

from tidemill.models.base import Model


class BucketEvent(Model):
    """One object that may have changed. `keys` are the readings of the key, likeliest first; a HEAD decides."""

    bucket: str
    keys: tuple[str, ...]
    name: str = "created"
    size: int | None = None
    etag: str | None = None
