"""The epoch keeper: is this Redis the one that the bucket knows, and as new?

The leader writes (epoch, sequence) into Redis and then into the bucket, again and again. A Redis that has none, or an
older one than the bucket, has lost something: a new epoch begins, and everything is rebuilt from the bucket. Sequence 0
means that the rebuild is not complete: whoever finds it (also a later leader) rebuilds. Redis is written first, so a
death in between leaves Redis the newer one, which is no loss.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from tidemill.errors import PreconditionFailed
from tidemill.failpoints import failpoint
from tidemill.ledger.api import Ledger
from tidemill.models import EpochRecord
from tidemill.record import Record
from tidemill_placement.lead import Lead

log = structlog.get_logger(__name__)


class Deposed(Exception):
    """Another leader writes the epoch: this one steps down."""


class EpochKeeper:
    """Keeps the epoch of Redis and bucket together.

    Args:
        rebuild: restores the ledger from the bucket; may be called again after it failed.
        lead: its fence keeps a leader that was replaced from writing the epoch, which would depose the new one.
    """

    def __init__(
        self,
        ledger: Ledger,
        record: Record,
        rebuild: Callable[[], object],
        clock: Callable[[], float] = time.time,
        lead: Lead | None = None,
    ) -> None:
        self._ledger = ledger
        self._record = record
        self._rebuild = rebuild
        self._clock = clock
        self._lead = lead or Lead()
        self._known: tuple[int, int] | None = None

    def keep(self) -> bool:
        """Check and write once. Gives whether a new epoch began (or a rebuild was completed) in this call.

        Raises:
            Deposed: another leader wrote the epoch in between.
            StoreUnavailable, LedgerUnavailable: nothing is known; call again.
        """
        found = self._record.read_epoch()
        stored, tag = found if found is not None else (None, None)
        durable = (stored.epoch, stored.sequence) if stored is not None else (0, 0)
        live = self._ledger.epoch()
        newest = max(durable, self._known or (0, 0))
        began = live is None or live < newest
        if began:
            epoch = max(newest[0], live[0] if live else 0) + 1
            log.warning("epoch.begins", epoch=epoch, redis=live, bucket=durable)
            if not self._ledger.begin_epoch(epoch, 0):
                raise Deposed(f"Redis holds a newer epoch than {epoch}")
            failpoint("epoch.begun")
            tag = self._write(epoch, 0, tag)
            failpoint("epoch.written")
            live = (epoch, 0)
        assert live is not None
        epoch, sequence = live
        complete = sequence > 0
        if not complete:
            self._rebuild()
            failpoint("epoch.rebuilt")
        # A rebuild has asked for the lease itself; a new Redis knows none of the fences before.
        if not self._ledger.advance(epoch, sequence + 1, fence=self._lead.fence if complete else None):
            raise Deposed(f"Redis is not in epoch {epoch} any more, or somebody else leads")
        failpoint("epoch.advanced")
        self._known = (epoch, sequence + 1)
        self._write(epoch, sequence + 1, tag)
        return began or not complete

    def _write(self, epoch: int, sequence: int, tag: str | None) -> str:
        try:
            return self._record.write_epoch(EpochRecord(epoch=epoch, sequence=sequence, written_at=self._clock()), tag)
        except PreconditionFailed as error:
            raise Deposed("another leader wrote the epoch") from error
