"""The listing that makes intake certain: every object under a trigger's prefix is asked for, round after round.

A round lists each prefix from its start to its end, page by page, and asks the ledger for all identities of a page at
once. What is unknown goes through the same submit as an event. Nothing is remembered between rounds but what saves
questions: no high-water mark, no reliance on the order of a listing, and a listing that broke off starts again.
The next round begins with the prefix at which the last one broke off, so that one bad bucket does not starve the rest.

One gateway does it, the holder of the lease `reconciler`. A round is followed by a pause of at least `interval_s`,
stretched so that the CPU time of listing stays below 5 % of one core (4 % for objects, 1 % for requests).

Request records (API calls) are listed too: one that the ledger does not know, because it lost its memory or because the
gateway died between the record and the submit, is submitted again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

import structlog

from tidemill.errors import TidemillError
from tidemill.failpoints import failpoint
from tidemill.ledger.api import Ledger, NewJob
from tidemill.record import Record
from tidemill.store import ObjectInfo, Store
from tidemill_gateway.catalogue import Catalogue, Table
from tidemill_gateway.intake import rules
from tidemill_gateway.intake.memo import Memo
from tidemill_gateway.intake.submit import Submitter, current_targets, identity
from tidemill_gateway.metrics import Metrics
from tidemill_gateway.pressure import Pressure

LEASE = "reconciler"
_OBJECTS_SHARE, _REQUESTS_SHARE = 0.04, 0.01  # of one core
_RUST_S_PER_OBJECT = 4e-6  # CPU of the S3 client's own threads, which `thread_time` does not see
_YOUNG_REQUEST_S = 3.0
_TAKERS = 4
_COMPLAIN_S = 10.0
T = TypeVar("T")
Open = tuple[str, str, int]  # function, job id, generation
log = structlog.get_logger(__name__)


class Reconciler:
    """Lists in a thread of its own between `start` and `stop`; `round` does it once."""

    def __init__(
        self,
        ledger: Ledger,
        record: Record,
        store: Store,
        catalogue: Catalogue,
        submitter: Submitter,
        pressure: Pressure,
        metrics: Metrics,
        *,
        holder: str,
        interval_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._ledger = ledger
        self._record = record
        self._store = store
        self._catalogue = catalogue
        self._submitter = submitter
        self._pressure = pressure
        self._metrics = metrics
        self._holder = holder
        self._interval_s = interval_s
        self._clock = clock
        self._ttl_s = max(10.0, 3 * interval_s)
        self._renewed_at = 0.0
        self._requests_due_at = 0.0
        self._broke_at: tuple[str, str] | None = None
        # Identity as listed -> as the HEAD says, on stores where they differ; without it each round would ask again.
        self._says_head: Memo[str, str] = Memo(100_000, 3600.0)
        # What a HEAD showed to be no job (hop count): its identity.
        self._no_job: Memo[str, bool] = Memo(100_000, 600.0)
        self._finished: Memo[Open, bool] = Memo(100_000, 3600.0)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._complained_at = -_COMPLAIN_S

    def start(self) -> None:
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="reconciler", daemon=True)
        self._thread.start()

    def stop(self, wait_s: float = 1.0) -> None:
        """End after the page in hand, and give the lease up."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(wait_s)
            self._thread = None

    def _run(self) -> None:
        pause_s = 0.0
        while not self._stop.wait(pause_s):
            try:
                pause_s = self.round()
            except TidemillError as error:
                pause_s = self._interval_s
                self._complain(error)
            except Exception:
                pause_s = 5 * self._interval_s
                log.exception("reconciler.failed")
        try:
            self._ledger.resign(LEASE, self._holder)
        except TidemillError as error:
            log.info("reconciler.lease_left", error=str(error))  # it expires by itself

    def round(self) -> float:
        """List everything once, when the lease is ours. Gives the seconds until the next round.

        Raises:
            StoreUnavailable, LedgerUnavailable, ServiceUnavailable: the round broke off; the next one begins there.
        """
        if not self._lead():
            return self._ttl_s / 3
        self._pressure.check()
        began = time.monotonic()
        spent_s = self._measured(lambda: self._objects(self._catalogue.current()))
        if began >= self._requests_due_at:
            requests_s = self._measured(self._requests)
            self._requests_due_at = began + max(0.9 * self._interval_s, requests_s / _REQUESTS_SHARE)
        self._metrics.listing_seconds.observe(time.monotonic() - began)
        return max(self._interval_s, spent_s / _OBJECTS_SHARE)

    def _measured(self, listing: Callable[[], int]) -> float:
        """Do a listing, and give its CPU seconds."""
        cpu = time.thread_time()
        listed = listing()
        self._metrics.listed_objects.inc(listed)
        return time.thread_time() - cpu + listed * _RUST_S_PER_OBJECT

    def _lead(self) -> bool:
        self._renewed_at = time.monotonic()
        return self._ledger.acquire(LEASE, self._holder, self._ttl_s) is not None

    def _go_on(self) -> bool:
        """Between two pages: still wanted, and still ours?"""
        if self._stop.is_set():
            return False
        return time.monotonic() - self._renewed_at < self._ttl_s / 3 or self._lead()

    # -- objects -------------------------------------------------------------------------------------------------
    def _objects(self, table: Table) -> int:
        listed = 0
        failure: TidemillError | None = None
        for place in self._order(table.prefixes()):
            try:
                for page in self._store.pages(*place):
                    if not self._go_on():
                        self._broke_at = place
                        return listed
                    listed += len(page)
                    self._page(table, page)
            except TidemillError as error:
                # Another bucket may still answer; the first one that did not comes first next time.
                if failure is None:
                    failure, self._broke_at = error, place
                self._complain(error, bucket=place[0], prefix=place[1])
        if failure is None:
            self._broke_at = None
        return listed

    def _order(self, places: list[tuple[str, str]]) -> list[tuple[str, str]]:
        if self._broke_at not in places:
            return places
        at = places.index(self._broke_at)
        return places[at:] + places[:at]

    def _page(self, table: Table, page: list[ObjectInfo]) -> None:
        ids: list[str] = []
        infos: list[ObjectInfo] = []
        for info in page:
            for listed_id in self._candidates(table, info):
                ids.append(self._says_head.get(listed_id) or listed_id)
                infos.append(info)
        if not ids:
            return
        known = self._ledger.known(ids)
        failpoint("reconciler.page_asked")
        new = {
            (info.bucket, info.key): info
            for job_id, info, is_known in zip(ids, infos, known, strict=True)
            if not is_known and not self._no_job.get(job_id)
        }
        self._each(lambda info: self._take(table, info), new.values())

    def _candidates(self, table: Table, info: ObjectInfo) -> Iterator[str]:
        """The identities of a listed object that the rules let pass."""
        targets = current_targets(table, info)
        if not targets:
            return
        if reason := rules.ignored_name(info.key):
            self._submitter.note(info.bucket, info.key, reason)
            return
        for record, trigger in targets:
            if reason := rules.ignored_size(info.size, trigger):
                self._submitter.note(info.bucket, info.key, reason)
            else:
                yield identity(record, self._store.name, info)

    def _take(self, table: Table, info: ObjectInfo) -> None:
        taken = self._submitter.listed(table, info.bucket, info.key)
        if taken.created:
            self._metrics.jobs_accepted.labels("listing").inc(taken.created)
        for record, _ in current_targets(table, info):
            listed_id, head_id = identity(record, self._store.name, info), taken.ids.get(record.name)
            if taken.ignored:
                self._no_job.put(listed_id, True)
            elif head_id is not None and head_id != listed_id:
                self._says_head.put(listed_id, head_id)

    # -- requests ------------------------------------------------------------------------------------------------
    def _requests(self) -> int:
        listed = 0
        for chunk in _chunks(self._record.open_requests(), 1000):
            listed += len(chunk)
            if not self._go_on():
                break
            first = [entry for entry in chunk if entry[2] == 1]
            known = self._ledger.known([job_id for _, job_id, _ in first])
            new = [entry for entry, is_known in zip(first, known, strict=True) if not is_known]
            # A retry has the id of the job that it repeats, which is settled: only the job or its manifest can tell.
            new += [entry for entry in chunk if entry[2] > 1 and not self._lives(entry)]
            self._each(self._again, new)
        return listed

    def _lives(self, entry: Open) -> bool:
        function, job_id, generation = entry
        if self._finished.get(entry):
            return True
        job = self._ledger.job(job_id)
        if job is not None and job.generation >= generation:
            if job.state.terminal:
                self._finished.put(entry, True)
            return True
        if self._record.get_manifest(function, job_id, generation) is None:
            return False
        self._finished.put(entry, True)
        return True

    def _again(self, entry: Open) -> None:
        function, job_id, generation = entry
        request = self._record.get_request(function, job_id, generation)
        failpoint("reconciler.request_read")
        if request is None or self._clock() - request.created_at < _YOUNG_REQUEST_S:
            return
        found = self._catalogue.current().functions.get(function) or self._record.get_function(function)
        job = NewJob(
            id=job_id,
            function=function,
            input=request.input,
            # Without a function placement ends the job and says why.
            revision=found.revision if found is not None else "",
            params=request.params,
            owner=request.owner,
            generation=generation,
            max_attempts=found.spec.limits.attempts if found is not None else 1,
            look_first=True,
        )
        if self._submitter.submit(job).created:
            self._metrics.jobs_accepted.labels("request").inc()
            log.info("job.accepted", job_id=job_id, function=function, generation=generation, via="request")

    # -- both ----------------------------------------------------------------------------------------------------
    def _each(self, action: Callable[[T], None], entries: Iterable[T]) -> None:
        """Do it for all, a few at once when there are many. The first error is raised after all were tried."""
        found = list(entries)
        if len(found) < _TAKERS:
            for entry in found:
                action(entry)
            return
        with ThreadPoolExecutor(_TAKERS, thread_name_prefix="reconciler") as pool:
            for done in [pool.submit(action, entry) for entry in found]:
                done.result()

    def _complain(self, error: TidemillError, **where: str) -> None:
        now = time.monotonic()
        if now - self._complained_at >= _COMPLAIN_S:
            self._complained_at = now
            log.warning("reconciler.broke_off", code=error.error_code, error=str(error), **where)


def _chunks(entries: Iterable[T], size: int) -> Iterator[list[T]]:
    source = iter(entries)
    while chunk := list(islice(source, size)):
        yield chunk
