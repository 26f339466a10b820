"""The cursor of listings: creation time and id of the last job that a page looked at, right while others come."""

from __future__ import annotations

from tidemill.errors import InvalidSpec


def read_cursor(cursor: str | None) -> tuple[str, str]:
    """Give creation time (us) and id of the last job that a page looked at.

    Raises:
        InvalidSpec: this was never a cursor.
    """
    if cursor is None:
        return "", ""
    at, dash, last = cursor.partition("-")
    if not (dash and at.isdecimal()):
        raise InvalidSpec(f"{cursor[:80]!r} is not a cursor", hint="Pass the cursor of the page before, unchanged.")
    return at, last
