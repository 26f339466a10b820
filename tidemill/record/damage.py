"""Records that cannot be read: torn, overwritten by something else, or written by a newer version.

One of them must not keep all the others from being listed or restored. Whoever goes through many records skips it
(`damage_skipped`); `Objects` logs it with its key and remembers it until it can be read again. What placement finds is
noted in the ledger, where every gateway sees it, and `tidemill doctor` shows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import structlog

from tidemill.errors import LedgerUnavailable, TidemillError
from tidemill.ledger.api import Ledger

CODE = "damaged_record"
_REASON_CHARS = 300
log = structlog.get_logger(__name__)


@contextmanager
def damage_skipped() -> Iterator[None]:
    """Leave the block at a damaged record; every other error goes on."""
    try:
        yield
    except TidemillError as error:
        if error.error_code != CODE:
            raise


def note_damaged(ledger: Ledger, bucket: str, damaged: Mapping[str, str]) -> None:
    """Note damaged records (key -> what is wrong) in the ledger. It is a hint: a ledger that is full goes without."""
    try:
        for key, reason in sorted(damaged.items()):
            ledger.note_ignored(bucket, key, reason[:_REASON_CHARS])
    except LedgerUnavailable as error:
        log.warning("record.damage_not_noted", records=len(damaged), error=str(error))
