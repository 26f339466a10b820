"""Finished jobs come back into the lists and into Flower after the ledger lost its memory.

Reading every manifest would take minutes, so only the newest are read, and the newest failures: those are what somebody
may want to look at, and to retry. A failure has a name of its own in the bucket, beside its manifest. The others are
still found by their id.

The rebuild finds their names (`newest_names`). They are read when it is complete, beside the work (`Relisting`): nobody
waits for them. A process that ends before leaves shorter lists.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import structlog

from tidemill.ledger.api import Ledger
from tidemill.models import Manifest
from tidemill.record import Record
from tidemill.record.damage import damage_skipped, note_damaged
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


def newest_names(
    record: Record, newest: Newest, since: float, ended: Callable[[str, str, int], bool]
) -> tuple[Name, ...]:
    """The finished jobs that are to be listed again, oldest first. `ended` says whether a generation has a manifest.

    Raises:
        StoreUnavailable: call again.
    """
    failures = Newest(FAILURES)
    for _ in failures.passed(record.dated_failures()):
        pass
    wanted = sorted(newest.found(since) | failures.found(since))
    return tuple(dict.fromkeys(name for _, name in wanted if not ended(name[0], name[1], name[2] + 1)))


def relist(ledger: Ledger, record: Record, names: Sequence[Name]) -> int:
    """List finished jobs again. Gives how many the ledger did not know. Stops where its memory becomes scarce.

    Raises:
        StoreUnavailable, LedgerUnavailable: call again.
    """
    count = 0
    with ThreadPoolExecutor(_READERS, thread_name_prefix="relist") as readers:
        for start in range(0, len(names), _CHUNK):
            memory = ledger.memory()
            if memory.limit and memory.used > MEMORY_SHARE * memory.limit:
                log.warning("ledger.lists_less", left_out=len(names) - start, used=memory.used, limit=memory.limit)
                break
            found = readers.map(lambda name: _read(record, name), names[start : start + _CHUNK])
            count += sum(ledger.relist(manifest) for manifest in found if manifest is not None)
    note_damaged(ledger, record.bucket, record.damaged())
    log.info("ledger.relisted", jobs=count)
    return count


class Relisting:
    """What the last rebuild has left to be listed again."""

    def __init__(self, ledger: Ledger, record: Record) -> None:
        self._ledger = ledger
        self._record = record
        self._names: Sequence[Name] = ()

    def add(self, names: Sequence[Name]) -> None:
        self._names = names

    def run(self) -> int:
        """Do it, and give the number of jobs; raises as `relist`, and is to be called again then."""
        names = self._names
        count = relist(self._ledger, self._record, names) if names else 0
        if self._names is names:  # no other rebuild meanwhile
            self._names = ()
        return count


def _read(record: Record, name: Name) -> Manifest | None:
    found = None
    with damage_skipped():
        found = record.get_manifest(*name)
    return found  # noqa: RET504 - damage ends the block
