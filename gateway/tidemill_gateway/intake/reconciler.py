"""The listing that makes intake certain: every object under a trigger's prefix is asked for, round after round.

Each prefix is listed from its start to its end, page by page, and the ledger is asked for all identities of a page at
once. What is unknown goes through the same submit as an event. Nothing is remembered between listings but what saves
questions: no high-water mark, no reliance on the order of a listing, and a listing that broke off starts again.

Two lanes, each with at most 2 % of a core, so that a bucket of millions does not keep a small inbox waiting:

- *hot*: prefixes whose last listing was quick, and below the others the folders where something came in the last hour.
  All of them every `interval_s`.
- *cold*: the other prefixes, one after the other, each followed by the pause that its cost asks for; every one at least
  once a day. Between two of its pages the hot lane is served.

A prefix that cannot be listed waits for its next turn and holds up no other one. An object that the store refuses to
show is noted as ignored, holds up none of those behind it, and is tried again after some minutes. After 1,000 refusals
in one listing only a few more are asked for on each page, until one of them is refused. After a change of the ledger's
epoch, and after a replay, everything is hot once.

One gateway does it, the holder of the lease `reconciler`. Request records (API calls) are listed too, with at most 1 %
of a core: one that the ledger does not know, because it lost its memory or because the gateway died between the record
and the submit, is submitted again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import structlog

from tidemill.errors import StoreUnavailable, TidemillError
from tidemill.failpoints import failpoint
from tidemill.ledger.api import Ledger, NewJob
from tidemill.record import Record
from tidemill.record.damage import damage_skipped, note_damaged
from tidemill.store import ObjectInfo, Store
from tidemill_gateway.catalogue import Catalogue, Table
from tidemill_gateway.intake import rules
from tidemill_gateway.intake.memo import Memo
from tidemill_gateway.intake.submit import Submitter, current_targets, identity
from tidemill_gateway.metrics import Metrics
from tidemill_gateway.pressure import Pressure

LEASE = "reconciler"
_HOT_SHARE, _COLD_SHARE, _REQUESTS_SHARE = 0.02, 0.02, 0.01  # of one core
_DAY_S = 86400.0
_HOUR_S = 3600.0
_SHORTEST_S = 0.05
_YOUNG_REQUEST_S = 3.0
_TAKERS = 4
_LEASE_S = 4.0
_REFUSED_S = 300.0
_MOST_REFUSED, _FEW = 1000, 20
_COMPLAIN_S = 10.0
T = TypeVar("T")
Open = tuple[str, str, int]  # function, job id, generation
Place = tuple[str, str]  # bucket, prefix
Seen = tuple[str, str, str, float]  # bucket, key, ETag, time of last modification
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
        ticks: Callable[[], float] = time.monotonic,
        cpu_s: Callable[[], float] = time.thread_time,
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
        self._ticks = ticks
        self._cpu_s = cpu_s
        # Two that list at once do no harm, while a killed one's lease keeps everybody waiting: so it is short.
        self._ttl_s = max(_LEASE_S, 2 * interval_s)
        self._renewed_at = 0.0
        self._hot_at = self._cold_at = self._requests_at = 0.0
        self._epoch: int | None = None
        self._began: dict[str, tuple[Any, ...]] = {}
        # CPU seconds of each prefix' last listing, and when it ended.
        self._costs: dict[Place, float] = {}
        self._last_costs: dict[Place, float] = {}
        self._taking_s = 0.0
        self._ended: dict[Place, float] = {}
        # Identity as listed -> as the HEAD says, on stores where they differ; without it each round would ask again.
        self._says_head: Memo[str, str] = Memo(100_000, 3600.0)
        # What a HEAD showed to be no job (hop count): its identity.
        self._no_job: Memo[str, bool] = Memo(100_000, 600.0)
        # What the store refused to show; asked for again when this is forgotten.
        self._refused: Memo[Seen, bool] = Memo(100_000, _REFUSED_S, ticks)
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
                pause_s = self.turn()
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

    def turn(self) -> float:
        """List what is due, when the lease is ours. Gives the seconds until something is due again.

        Raises:
            LedgerUnavailable, ServiceUnavailable: nothing can be taken now.
        """
        if not self._lead():
            return self._ttl_s / 4
        self._pressure.check()
        table = self._catalogue.current()
        self._notice(table)
        began = self._ticks()
        # What is due in a moment is done now: a turn asks the ledger four things before it lists anything.
        slack_s = 0.1 * self._interval_s
        if began + slack_s >= self._hot_at:
            self._hot(table)
        if self._ticks() + slack_s >= self._cold_at:
            self._cold(table)
        if began + slack_s >= self._requests_at:
            spent_s = self._measured(self._requests)
            self._requests_at = self._ticks() + max(self._interval_s, spent_s / _REQUESTS_SHARE)
        self._metrics.listing_seconds.observe(self._ticks() - began)
        return max(_SHORTEST_S, min(self._hot_at, self._cold_at, self._requests_at) - self._ticks())

    def round(self) -> float:
        """List everything once, now. Gives the seconds until something is due again. Raises as `turn`."""
        self._forget()
        self._requests_at = 0.0
        return self.turn()

    def _measured(self, listing: Callable[[], int]) -> float:
        """Do a listing; give its CPU seconds."""
        cpu = self._cpu_s()
        self._metrics.listed_objects.inc(listing())
        return self._cpu_s() - cpu

    def _lead(self) -> bool:
        self._renewed_at = self._ticks()
        return self._ledger.acquire(LEASE, self._holder, self._ttl_s) is not None

    def _go_on(self) -> bool:
        """Between two pages: still wanted, and still ours?"""
        if self._stop.is_set():
            return False
        return self._ticks() - self._renewed_at < self._ttl_s / 3 or self._lead()

    # -- lanes ---------------------------------------------------------------------------------------------------
    def _notice(self, table: Table) -> None:
        """After a ledger that began anew, and after a change of when a trigger begins, everything is listed soon."""
        found = self._ledger.epoch()
        epoch = found[0] if found is not None else None
        began = {
            name: (record.triggers_since, tuple(sorted(record.places_since.items())), record.replayed)
            for name, record in table.functions.items()
        }
        if epoch != self._epoch or began != self._began:
            self._epoch, self._began = epoch, began
            self._forget()

    def _forget(self) -> None:
        self._costs.clear()
        self._last_costs.clear()
        self._hot_at = 0.0

    def _is_hot(self, place: Place) -> bool:
        return self._costs.get(place, 0.0) <= self._interval_s * _HOT_SHARE

    def _hot(self, table: Table) -> None:
        places = table.prefixes()
        cold = [place for place in places if not self._is_hot(place)]
        folders = [
            (bucket, folder)
            for bucket, folder in self._submitter.lively(_HOUR_S)
            if any(bucket == b and folder.startswith(p) and folder != p for b, p in cold)
        ]
        everything = {*places, *folders}
        self._costs = {place: cost for place, cost in self._costs.items() if place in everything}
        self._last_costs = {place: cost for place, cost in self._last_costs.items() if place in everything}
        self._ended = {place: at for place, at in self._ended.items() if place in everything}
        spent_s = 0.0
        for place in [place for place in (*places, *folders) if self._is_hot(place)]:
            cost_s = self._list(table, place)
            if self._is_hot(place):
                spent_s += cost_s
            else:  # now we know
                self._cold_at = max(self._cold_at, self._ticks() + min(cost_s / _COLD_SHARE, _DAY_S))
        self._hot_at = self._ticks() + max(self._interval_s, spent_s / _HOT_SHARE)

    def _cold(self, table: Table) -> None:
        places = [place for place in table.prefixes() if not self._is_hot(place)]
        if not places:
            self._cold_at = self._ticks() + self._interval_s
            return
        spent_s = self._list(table, min(places, key=lambda place: self._ended.get(place, 0.0)), cold=True)
        pause_s = min(spent_s / _COLD_SHARE, _DAY_S / len(places))
        self._cold_at = self._ticks() + max(self._interval_s, pause_s)

    # -- objects -------------------------------------------------------------------------------------------------
    def _list(self, table: Table, place: Place, *, cold: bool = False) -> float:
        """List one prefix; gives the CPU seconds to reckon with.

        What a prefix costs is what listing it costs, not what its new jobs cost; and a hot one costs the lesser of its
        last two: a single dear listing (a first connection, a busy machine) would else rest all hot ones for seconds.
        """
        complete = True
        others_s = 0.0
        taking_s = self._taking_s
        refused: list[str] = []
        failed: list[StoreUnavailable] = []

        def pages() -> int:
            nonlocal complete, others_s
            listed = 0
            for page in self._store.pages(*place):
                if not self._go_on():
                    complete = False
                    break
                listed += len(page)
                try:
                    self._page(table, page, refused)
                except StoreUnavailable as error:  # perhaps of one object only; else the next page tells
                    failed.append(error)
                if cold and self._ticks() >= self._hot_at:
                    cpu = self._cpu_s()
                    self._hot(table)
                    others_s += self._cpu_s() - cpu
            return listed

        spent_s = 0.0
        try:
            spent_s = max(0.0, self._measured(pages) - others_s - (self._taking_s - taking_s))
            if complete:
                self._costs[place] = min(spent_s, self._last_costs.get(place, 0.0))
                self._last_costs[place] = spent_s
                spent_s = spent_s if cold else self._costs[place]
        except TidemillError as error:
            self._complain(error, bucket=place[0], prefix=place[1])
        else:
            if failed:
                self._complain(failed[0], bucket=place[0], prefix=place[1])
        if len(refused) >= _MOST_REFUSED and self._may_complain():
            log.warning("reconciler.many_refused", bucket=place[0], prefix=place[1], last_key=refused[-1])
        self._ended[place] = self._ticks()
        return spent_s

    def _page(self, table: Table, page: list[ObjectInfo], refused: list[str]) -> None:
        """Take what is new on a page. `refused` gets the keys of this listing that the store does not show: when there
        are very many, as many questions at each listing would find nothing but those."""
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
            if not is_known and not self._no_job.get(job_id) and not self._refused.get(_seen(info))
        }
        cpu = self._cpu_s()
        careful = len(refused) >= _MOST_REFUSED
        for chunk in _chunks(new.values(), _FEW if careful else len(page)):
            before = len(refused)
            self._each(lambda info: self._take(table, info, refused), chunk)
            if careful and len(refused) > before:
                break
        self._taking_s += self._cpu_s() - cpu

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

    def _take(self, table: Table, info: ObjectInfo, refused: list[str]) -> None:
        taken = self._submitter.listed(table, info.bucket, info.key)
        if taken.created:
            self._metrics.jobs_accepted.labels("listing").inc(taken.created)
        if taken.refused:
            refused.append(info.key)
            self._refused.put(_seen(info), True)
        for record, _ in current_targets(table, info):
            listed_id, head_id = identity(record, self._store.name, info), taken.ids.get(record.name)
            if taken.ignored:
                self._no_job.put(listed_id, True)
            elif head_id is not None and head_id != listed_id:
                self._says_head.put(listed_id, head_id)

    # -- requests ------------------------------------------------------------------------------------------------
    def _requests(self) -> int:
        listed = 0
        failed: list[StoreUnavailable] = []
        for chunk in _chunks(self._record.open_requests(), 1000):
            listed += len(chunk)
            if not self._go_on():
                break
            first = [entry for entry in chunk if entry[2] == 1]
            known = self._ledger.known([job_id for _, job_id, _ in first])
            new = [entry for entry, is_known in zip(first, known, strict=True) if not is_known]
            # A retry has the id of the job that it repeats, which is settled: only the job or its manifest can tell.
            new += [entry for entry in chunk if entry[2] > 1]
            try:
                self._each(self._again, new)
            except StoreUnavailable as error:  # perhaps of one record only
                failed.append(error)
        note_damaged(self._ledger, self._record.bucket, self._record.damaged())
        if failed:
            raise failed[0]
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
        with damage_skipped():  # one that cannot be read is there all the same
            if self._record.get_manifest(function, job_id, generation) is None:
                return False
        self._finished.put(entry, True)
        return True

    def _again(self, entry: Open) -> None:
        if entry[2] > 1 and self._lives(entry):
            return
        with damage_skipped():  # of the request or its function: the others are taken
            self._take_request(*entry)

    def _take_request(self, function: str, job_id: str, generation: int) -> None:
        request = self._record.get_request(function, job_id, generation)
        failpoint("reconciler.request_read")
        # One from a clock that is ahead is not young: it would wait until ours has come there.
        if request is None or 0 <= self._clock() - request.created_at < _YOUNG_REQUEST_S:
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
            errors = [error for entry in found if (error := _error_of(action, entry)) is not None]
        else:
            with ThreadPoolExecutor(_TAKERS, thread_name_prefix="reconciler") as pool:
                errors = [error for error in pool.map(partial(_error_of, action), found) if error is not None]
        if errors:
            raise errors[0]

    def _complain(self, error: TidemillError, **where: str) -> None:
        if self._may_complain():
            log.warning("reconciler.broke_off", code=error.error_code, error=str(error), **where)

    def _may_complain(self) -> bool:
        now = self._ticks()
        if now - self._complained_at < _COMPLAIN_S:
            return False
        self._complained_at = now
        return True


def _seen(info: ObjectInfo) -> Seen:
    return info.bucket, info.key, info.etag, info.last_modified


def _error_of(action: Callable[[T], None], entry: T) -> Exception | None:
    """Do it for one; give the error that came of it."""
    try:
        action(entry)
    except Exception as error:  # noqa: BLE001 - raised by the caller when all were tried
        return error
    return None


def _chunks(entries: Iterable[T], size: int) -> Iterator[list[T]]:
    source = iter(entries)
    while chunk := list(islice(source, size)):
        yield chunk
