"""Commits that the ledger knows nothing of: their publication is finished.

An attempt from before a loss of Redis may commit after the rebuild has listed the commits, and die before it published.
Mostly the next listing of its input, or of its request, leads a claim to the commit. An input that was removed in the
meantime leads nobody there, and the job would stay half-done. So the leader lists the commits now and then, as the
reconciler lists inputs: by name, a page and one question to the ledger at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import structlog

from tidemill.ledger.api import Ledger
from tidemill.record import Record
from tidemill.record.damage import damage_skipped, note_damaged

_PAGE = 1000
Name = tuple[str, str, int]  # function, job id, generation
log = structlog.get_logger(__name__)


def finish_forgotten(ledger: Ledger, record: Record) -> int:
    """Publish what was committed and is neither live nor settled in the ledger. Gives how many.

    Later generations are left out: their requests are listed, and last as long as they have no manifest.

    Raises:
        StoreUnavailable, LedgerUnavailable: call again.
    """
    epoch = ledger.epoch()
    if epoch is None or epoch[1] == 0:
        return 0  # the rebuild does it
    finished = 0
    for page in _pages(name for name in record.commits() if name[2] == 1):
        known = ledger.known([job_id for _, job_id, _ in page])
        for name, is_known in zip(page, known, strict=True):
            # Asked after it was unknown: retention deletes a commit before it forgets the identity.
            if not is_known and _finish(ledger, record, name):
                finished += 1
    note_damaged(ledger, record.bucket, record.damaged())
    return finished


def _finish(ledger: Ledger, record: Record, name: Name) -> bool:
    function, job_id, _ = name
    done = False
    with damage_skipped():
        commit = record.get_commit(*name)
        if commit is not None:
            manifest = record.publish(commit)
            ledger.settle([job_id])
            ledger.relist(manifest)
            log.info("publication.finished", job_id=job_id, function=function)
            done = True
    return done


def _pages(names: Iterable[Name]) -> Iterator[list[Name]]:
    source = iter(names)
    while page := list(islice(source, _PAGE)):
        yield page
