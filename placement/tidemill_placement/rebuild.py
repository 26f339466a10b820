"""Rebuild: the ledger from the bucket, by the names of objects, not by reading each.

In this order: pools, for which jobs of an older copy may wait; the settled set, so that nothing finished is enqueued
again; commits without a manifest, which are published; accepted cancels, which end their jobs; requests without a
manifest, which are queued (their claims look for a commit first); functions, and with them their triggers: only then
can listings find work again; at last the names of the newest finished jobs and failures, which lists and Flower get
back when work goes on (`relisting.py`). Everything may be done twice. A record that cannot be read is left out
(`tidemill.record.damage`), everything else comes back.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import structlog

from tidemill.errors import LedgerUnavailable
from tidemill.failpoints import failpoint
from tidemill.ledger.api import Ledger, NewJob
from tidemill.models import CancelRecord, CommitRecord, FunctionRecord, JobError
from tidemill.record import Record, keys
from tidemill.record.damage import damage_skipped, note_damaged
from tidemill.record.mirror import mirror_functions
from tidemill.record.record import Dated
from tidemill_placement.relisting import NEWEST, Name, Newest, newest_names

_LOOKS = 3
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """How much a rebuild found; `damaged` records could not be read and were left out. `unlisted` are the finished jobs
    that are to be listed again, oldest first."""

    settled: int
    published: int
    cancelled: int
    queued: int
    functions: int
    pools: int
    damaged: int
    unlisted: tuple[Name, ...]


def rebuild(ledger: Ledger, record: Record, fence: int | None = None, since: float = 0.0) -> Rebuilt:
    """Restore the ledger. `fence` is that of the leader's lease as it is now: a new Redis has given a new one. Jobs
    that ended before `since` (seconds since 1970) are to be in no list again.

    Raises:
        StoreUnavailable, LedgerUnavailable: not complete (also: another one leads now); call again.
    """
    done: set[int] = set()
    newest = Newest(NEWEST)
    pools = _pools(ledger, record, fence)
    failpoint("rebuild.pools_restored")
    new = ledger.settle(_noted(newest.passed(record.dated_manifests()), done))
    failpoint("rebuild.settled")
    functions = {function.name: function for function in record.functions() if function.deleted_at is None}
    published = _publish(ledger, record, done)
    failpoint("rebuild.commits_published")
    cancelled = _cancel(ledger, record, done)
    failpoint("rebuild.cancels_done")
    queued = _queue(ledger, record, functions, done)
    failpoint("rebuild.requests_queued")
    mirror_functions(ledger, record, fence)
    failpoint("rebuild.functions_restored")
    unlisted = newest_names(record, newest, since, lambda _, job_id, generation: _number(job_id, generation) in done)
    damaged = record.damaged()
    note_damaged(ledger, record.bucket, damaged)
    result = Rebuilt(len(done), published, cancelled, queued, len(functions), pools, len(damaged), unlisted)
    log.info(
        "ledger.rebuilt",
        settled=len(done),
        new=new,
        published=published,
        cancelled=cancelled,
        queued=queued,
        unlisted=len(unlisted),
        damaged=sorted(damaged)[:10],
    )
    return result


class Mirrors:
    """Completes the mirrors of functions and pools, where somebody who changed one died before the ledger heard of it.
    Remembers how bucket and ledger were when it read them: while both stay so, only names are listed."""

    def __init__(self, ledger: Ledger, record: Record) -> None:
        self._ledger = ledger
        self._record = record
        self._seen: tuple[int, dict[str, str]] | None = None  # version of the ledger, ETags of the bucket

    def complete(self, fence: int | None = None) -> None:
        """Do one round. A ledger that is being rebuilt is left alone: its functions come last.

        Raises:
            StoreUnavailable, LedgerUnavailable: not complete; call again.
        """
        epoch = self._ledger.epoch()
        if epoch is None or epoch[1] == 0:
            return
        found = (self._ledger.version(), self._tags())
        if found == self._seen:
            return
        mirror_functions(self._ledger, self._record, fence)
        _pools(self._ledger, self._record, fence)
        # What was written has moved the version: the next round looks again.
        self._seen = found if found[1].keys().isdisjoint(self._record.damaged()) else None

    def _tags(self) -> dict[str, str]:
        store, bucket = self._record.store, self._record.bucket
        functions = (info for page in store.pages(bucket, keys.FUNCTIONS) for info in page)
        pools = (info for page in store.pages(bucket, keys.POOLS) for info in page)
        current = (info for info in functions if info.key.endswith(keys.CURRENT))
        return {info.key: info.etag for info in (*current, *pools)}


def _noted(manifests: Iterable[Dated], done: set[int]) -> Iterator[str]:
    for _, (_, job_id, generation) in manifests:
        done.add(_number(job_id, generation))
        yield job_id


def _number(job_id: str, generation: int) -> int:
    """One whole number for job and generation: less memory than a string, there may be millions."""
    return (int(job_id, 16) << 32) | generation


def _publish(ledger: Ledger, record: Record, done: set[int]) -> int:
    count = 0
    for function, job_id, generation in record.commits():
        if _number(job_id, generation) in done:
            continue
        with damage_skipped():
            commit = record.get_commit(function, job_id, generation)
            if commit is None:
                continue
            manifest = record.publish(commit)
            ledger.settle([job_id])
            ledger.relist(manifest)
            done.add(_number(job_id, generation))
            count += 1
    return count


def _cancel(ledger: Ledger, record: Record, done: set[int]) -> int:
    """End the jobs whose cancel was accepted, and whose agents may not have heard of it. As always the commit record
    that was first counts: an attempt that still runs may have been quicker."""
    count = 0
    epoch = ledger.epoch()
    for name in record.cancels():
        if _number(*name[1:]) in done:
            continue
        with damage_skipped():
            wish = record.get_cancel(*name)
            if wish is None:
                continue
            _, commit = record.commit(_commit_of(wish, epoch[0] if epoch is not None else 0))
            failpoint("rebuild.cancel_committed")
            manifest = record.publish(commit)
            ledger.settle([wish.job_id])
            ledger.relist(manifest)
            done.add(_number(*name[1:]))
            count += 1
    return count


def _commit_of(wish: CancelRecord, epoch: int) -> CommitRecord:
    return CommitRecord(
        job_id=wish.job_id,
        function=wish.function,
        revision=wish.revision,
        generation=wish.generation,
        outcome="cancelled",
        nonce=secrets.token_hex(8),
        epoch=epoch,
        attempt=0,
        owner=wish.owner,
        input=wish.input,
        params=wish.params,
        error=JobError(code="cancelled", message=f"cancelled by {wish.by}"),
        created_at=wish.created_at,
        committed_at=time.time(),
    )


def _queue(ledger: Ledger, record: Record, functions: dict[str, FunctionRecord], done: set[int]) -> int:
    count = 0
    damaged = record.damaged()
    for name, job_id, generation in record.open_requests():
        if _number(job_id, generation) in done:
            continue
        if keys.function(name) in damaged:
            continue  # the reconciler queues it when somebody has mended the function
        request = None
        with damage_skipped():
            request = record.get_request(name, job_id, generation)
        if request is None:
            continue
        function = functions.get(name)
        submitted = ledger.submit(
            NewJob(
                id=job_id,
                function=name,
                input=request.input,
                revision=function.revision if function is not None else "",
                params=request.params,
                owner=request.owner,
                generation=generation,
                max_attempts=function.spec.limits.attempts if function is not None else 1,
                look_first=True,
            )
        )
        count += submitted.created
    return count


def _pools(ledger: Ledger, record: Record, fence: int | None) -> int:
    """Mirror the pools. What an operator changed while we wrote is seen when we look again."""
    for _ in range(_LOOKS):
        before = ledger.pools()
        pools = {pool.spec.name: pool for pool in record.pools()}
        changed = {name: pool for name, pool in pools.items() if before.get(name) != pool}
        # A damaged one is in no list, and a listing may be late: each is looked for by its name.
        missing = before.keys() - pools.keys()
        gone = {name for name in missing if record.store.head(record.bucket, keys.pool(name)) is None}
        for pool in changed.values():
            _done(ledger.put_pool(pool.spec, draining=pool.draining, fence=fence))
        for name in gone:
            ledger.remove_pool(name, fence=fence)
        if not changed and not gone:
            break
    return len(pools)


def _done(written: bool) -> None:
    if not written:
        raise LedgerUnavailable("the leader's lease was lost while pools were mirrored: the mirror is not complete")
