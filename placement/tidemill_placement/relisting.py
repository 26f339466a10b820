"""Finished jobs come back into the lists and into Flower after the ledger lost its memory.

Reading every manifest would take minutes, so only the newest are read, and the newest failures: those are what somebody
may want to look at, and to retry. A failure has a name of its own in the bucket, beside its manifest. The others are
still found by their id.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import structlog

from tidemill.ledger.api import Ledger
from tidemill.models import Manifest
from tidemill.record import Record
from tidemill.record.damage import damage_skipped
from tidemill.record.record import Dated
from tidemill_placement.retention import MEMORY_SHARE

NEWEST, FAILURES = 1000, 2000
_READERS = 8
_CHUNK = 200
Name = tuple[str, str, int]  # function, job id, generation
log = structlog.get_logger(__name__)


class Newest:
    """The newest of a listing of any length, in constant memory."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._heap: list[Dated] = []

    def passed(self, listing: Iterable[Dated]) -> Iterator[Dated]:
        """Give the listing on, and remember its newest."""
        for dated in listing:
            if len(self._heap) < self._most:
                heapq.heappush(self._heap, dated)
            elif dated > self._heap[0]:
                heapq.heapreplace(self._heap, dated)
            yield dated

    def found(self, since: float) -> set[Dated]:
        """Those that were written at or after that time."""
        return {dated for dated in self._heap if dated.at >= since}


def relist(ledger: Ledger, record: Record, newest: Newest, since: float, ended: Callable[[str, str, int], bool]) -> int:
    """List the newest finished jobs again, oldest first. Gives how many the ledger did not know.

    `ended` says whether a generation has a manifest. Stops where the ledger's memory becomes scarce.

    Raises:
        StoreUnavailable, LedgerUnavailable: call again.
    """
    failures = Newest(FAILURES)
    for _ in failures.passed(record.dated_failures()):
        pass
    wanted = sorted(newest.found(since) | failures.found(since))
    names = list(dict.fromkeys(name for _, name in wanted if not ended(name[0], name[1], name[2] + 1)))
    count = 0
    with ThreadPoolExecutor(_READERS, thread_name_prefix="relist") as readers:
        for start in range(0, len(names), _CHUNK):
            memory = ledger.memory()
            if memory.limit and memory.used > MEMORY_SHARE * memory.limit:
                log.warning("ledger.lists_less", left_out=len(names) - start, used=memory.used, limit=memory.limit)
                break
            found = readers.map(lambda name: _read(record, name), names[start : start + _CHUNK])
            count += sum(ledger.relist(manifest) for manifest in found if manifest is not None)
    return count


def _read(record: Record, name: Name) -> Manifest | None:
    found = None
    with damage_skipped():
        found = record.get_manifest(*name)
    return found  # noqa: RET504 - damage ends the block
