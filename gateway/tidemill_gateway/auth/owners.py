"""From a bearer token to an owner, and from an owner to the buckets that it may use.

There is one owner today. The check stands where it will stand with many: each request carries an `Owner`, and whoever
touches a bucket or a job asks it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tidemill.errors import NotAllowed, NotFound
from tidemill.models import Job


@dataclass(frozen=True, slots=True)
class Owner:
    """A user or team. `buckets` are shell patterns of the bucket names that it may read and write."""

    name: str
    buckets: tuple[str, ...] = ("*",)

    def may_use(self, bucket: str) -> bool:
        return any(fnmatchcase(bucket, pattern) for pattern in self.buckets)

    def check_bucket(self, bucket: str) -> None:
        """Raises `NotAllowed` for a bucket of somebody else."""
        if not self.may_use(bucket):
            raise NotAllowed(
                f"bucket {bucket} is not among those that {self.name} may use ({', '.join(self.buckets)})",
                hint="Use one of these buckets, or ask the operator to add it to TIDEMILL_GATEWAY__BUCKETS.",
            )

    def check_job(self, job: Job) -> Job:
        """Gives the job back. Raises `NotFound` for one of somebody else, as if it were not there."""
        if job.owner != self.name:
            raise NotFound(f"there is no job {job.id}")
        return job


class Owners:
    """The tokens that are known. A token is looked for by its SHA-256, all of them compared in constant time."""

    def __init__(self, tokens: Mapping[str, Owner]) -> None:
        self._known = [(_digest(token), owner) for token, owner in tokens.items() if token]

    def resolve(self, token: str | None) -> Owner | None:
        """Give the owner of a token; None for an unknown one, or none at all."""
        given = _digest(token or "")
        found: Owner | None = None
        for digest, owner in self._known:
            if hmac.compare_digest(digest, given):
                found = owner
        return found


def bearer(header: str | None) -> str | None:
    """Give the token of an `Authorization` header. Some stores send it without the word Bearer."""
    if not header:
        return None
    scheme, _, rest = header.partition(" ")
    if not rest:
        return scheme
    return rest.strip() if scheme.lower() == "bearer" else None


def same_secret(given: str | None, expected: str) -> bool:
    """Compare in constant time; an empty `expected` matches nothing."""
    equal = hmac.compare_digest(_digest(given or ""), _digest(expected))
    return equal and bool(expected)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
