"""The written rules: which objects under a trigger's prefix are no job, and why.

1. Folder markers: the key ends with `/`.
2. Hidden names: the last part of the key starts with a dot (`.DS_Store`, `._photo.jpg`, a dot file).
3. Temporary names of the last part, in any case: `Thumbs.db`, `~$*`, and what ends with `.tmp`, `.part`, `.filepart`,
   `.crdownload`, `.part.minio`, `.swp`, or has `.partial` in it.
4. Empty objects wait until they have content: mounts and some tools create a file empty first.
5. Objects above the trigger's `max_size`.
6. Results whose hop count is above the limit (a result that started a job, whose result started a job, and so on).
7. Objects that a listing shows and that cannot be looked at: their HEAD is refused (a key of the customer's, a denied
   object), or no request can name them. They are tried again every few minutes.
8. Objects older than the trigger: they are for `replay`. Not listed, for there may be millions.

An object that matches no trigger (bucket, prefix, suffix) was never meant, and is not listed. The platform bucket can
have no trigger. The reasons below are what people read in the list of ignored objects.
"""

from __future__ import annotations

from tidemill.errors import TidemillError
from tidemill.models import Trigger

_REASON_CHARS = 300
ENDINGS = (".tmp", ".part", ".filepart", ".crdownload", ".part.minio", ".swp")


def ignored_name(key: str) -> str | None:
    """Give the reason why an object of this name is no job (rules 1 to 3), or None."""
    if key.endswith("/"):
        return "folder marker: the key ends with /"
    name = key.rsplit("/", 1)[-1].lower()
    if name.startswith("."):
        return "hidden name: it starts with a dot"
    if name == "thumbs.db" or name.startswith("~$"):
        return f"temporary name: {name if name == 'thumbs.db' else '~$*'}"
    if name.endswith(ENDINGS):
        return f"temporary name: *{next(end for end in reversed(ENDINGS) if name.endswith(end))}"
    if ".partial" in name:
        return "temporary name: *.partial*"
    return None


def plain(key: str) -> bool:
    """Whether an event may name an object so. Some stores find `a/b` also as `a//b` or `/a/b`: one object, and two
    identities. Such keys are taken as a listing spells them, never from an event."""
    return not any(part in ("", ".", "..") for part in key.removesuffix("/").split("/"))


def ignored_size(size: int, trigger: Trigger) -> str | None:
    """Give the reason why an object of this size (bytes) is no job of the trigger (rules 4 and 5), or None."""
    if size == 0:
        return "empty: it waits until it has content"
    if trigger.max_size is not None and size > trigger.max_size:
        return f"too large: {size} bytes, the trigger takes at most {trigger.max_size}"
    return None


def ignored_hop(hop: int, max_hops: int) -> str | None:
    """Give the reason why a result with this hop count starts nothing (rule 6), or None."""
    if hop > max_hops:
        return f"loop guard: hop count {hop} is above {max_hops}"
    return None


def refused(error: TidemillError) -> str:
    """Give the reason why an object that cannot be looked at is no job (rule 7)."""
    return f"not readable: {error.message[:_REASON_CHARS]}"


def hop_of(metadata: str | None) -> int:
    """Give the hop count of an object's `tidemill-hop`; 0 without one, or for one that is not ours."""
    if metadata is None or not metadata.isascii() or not metadata.isdigit() or len(metadata) > 6:
        return 0
    return int(metadata)
