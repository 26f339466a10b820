"""Replay: jobs for objects that were there before their trigger, and new lives for jobs that failed.

*Objects*: the function is told, in its record, that below these prefixes the age of an object does not count any more.
From then on they are as good as new ones: every listing finds those without a job, also after the ledger has lost its
memory, until all are done; and what is settled already is no second job. So the call need not outlive its request: it
submits what it finds within a few seconds, and the reconciler does the rest.

*Failed jobs* get their next generation, one durable request record each. They are found by their manifests, so also
long after the ledger forgot them; the caller comes again with the cursor until nothing is left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice

from tidemill.errors import Conflict, InvalidSpec, NotAllowed, NotFound, TidemillError
from tidemill.ledger.api import Ledger
from tidemill.models import FunctionRecord, JobState
from tidemill.record import Record
from tidemill.record.damage import CODE
from tidemill.store import ObjectInfo, Store
from tidemill_gateway.auth import Owner
from tidemill_gateway.calls import Calls
from tidemill_gateway.catalogue import Table, table_of
from tidemill_gateway.deploy import Deployer
from tidemill_gateway.intake import rules
from tidemill_gateway.intake.submit import Submitter, identity
from tidemill_gateway.metrics import Metrics
from tidemill_gateway.pressure import Pressure

_WORK_S = 8.0
_LOOK_S = 30.0
_AT_ONCE = 8
_EXAMPLES = 20
_LAST = ".~"  # after every generation of a job in the order of names


@dataclass
class Replayed:
    """What a replay found and did, in numbers of objects, or of failed jobs.

    `started` are the new jobs (with `dry_run` those that would be), `known` the objects that have a job already.
    `ignored` and `refused` count by reason. Not `complete`: for objects the listing goes on by itself; for failed jobs
    call again with `cursor`.
    """

    found: int = 0
    started: int = 0
    known: int = 0
    ignored: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)
    complete: bool = True
    cursor: str | None = None


class Replays:
    """Replays functions. One for each process; safe from any thread."""

    def __init__(
        self,
        ledger: Ledger,
        record: Record,
        store: Store,
        deployer: Deployer,
        submitter: Submitter,
        calls: Calls,
        pressure: Pressure,
        metrics: Metrics,
        *,
        clock: Callable[[], float] = time.monotonic,
        chunk: int = 200,
    ) -> None:
        self._ledger = ledger
        self._record = record
        self._store = store
        self._deployer = deployer
        self._submitter = submitter
        self._calls = calls
        self._pressure = pressure
        self._metrics = metrics
        self._clock = clock
        self._chunk = chunk

    # -- objects -------------------------------------------------------------------------------------------------
    def objects(self, owner: Owner, name: str, prefix: str = "", *, dry_run: bool = False) -> Replayed:
        """Start a job for each object below the function's triggers (and below `prefix`) that has none.

        Raises:
            NotFound: no such function.
            InvalidSpec: it has no trigger there.
            NotAllowed: a bucket of somebody else.
            ServiceUnavailable: the ledger is full, or a server does not answer. Call again.
        """
        function = self._calls.function(name)
        places = _places(function, prefix)
        for bucket, _ in places:
            owner.check_bucket(bucket)
        texts = [f"{bucket}/{below}" for bucket, below in places]
        if dry_run:
            function = function.model_copy(update={"replayed": (*function.replayed, *texts)})
        else:
            self._pressure.check()
            function = self._deployer.replay(name, texts)
        return self._walk(table_of({name: function}), function, places, dry_run)

    def _walk(self, table: Table, function: FunctionRecord, places: list[tuple[str, str]], dry_run: bool) -> Replayed:
        give_up = self._clock() + (_LOOK_S if dry_run else _WORK_S)
        done = Replayed()
        for place in places:
            for page in self._store.pages(*place):
                self._page(table, function, page, done, dry_run)
                if self._clock() >= give_up:
                    done.complete = False
                    return done
        return done

    def _page(
        self, table: Table, function: FunctionRecord, page: list[ObjectInfo], done: Replayed, dry_run: bool
    ) -> None:
        ids: dict[str, ObjectInfo] = {}
        for info in page:
            trigger = function.spec.trigger_for(info.bucket, info.key)
            if trigger is None:
                continue
            done.found += 1
            reason = rules.ignored_name(info.key) or rules.ignored_size(info.size, trigger)
            if reason is not None:
                _count(done.ignored, reason.split(":")[0])
            else:
                ids[identity(function, self._store.name, info)] = info
        known = self._ledger.known(list(ids))
        new = [info for info, is_known in zip(ids.values(), known, strict=True) if not is_known]
        done.known += len(ids) - len(new)
        done.examples += [f"{info.bucket}/{info.key}" for info in new[: _EXAMPLES - len(done.examples)]]
        if dry_run:
            done.started += len(new)
            return
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="replay") as pool:
            for taken in pool.map(lambda info: self._submitter.listed(table, info.bucket, info.key), new):
                done.started += taken.created
                if taken.ignored:
                    _count(done.ignored, "loop guard")
                if taken.refused:
                    _count(done.ignored, "not readable")
                self._metrics.jobs_accepted.labels("replay").inc(taken.created)

    # -- failed jobs ---------------------------------------------------------------------------------------------
    def failed(
        self, owner: Owner, name: str, prefix: str = "", *, dry_run: bool = False, cursor: str | None = None
    ) -> Replayed:
        """Start the next generation of the function's jobs that failed, and whose input is an object below `prefix`.

        Raises:
            NotFound: no such function.
            ServiceUnavailable: the ledger is full, or a server does not answer. Call again: what has its next
                generation already is no failed job any more.
        """
        self._calls.function(name)
        give_up = self._clock() + _WORK_S
        done = Replayed()
        newest = self._newest(name, cursor)
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="replay") as pool:
            while chunk := list(islice(newest, self._chunk)):
                results = pool.map(lambda entry: self._again(owner, name, entry[0], entry[1], prefix, dry_run), chunk)
                for (job_id, _), result in zip(chunk, results, strict=True):
                    if result is None:
                        continue
                    done.found += 1
                    if result:
                        _count(done.refused, result)
                    else:
                        done.started += 1
                    if len(done.examples) < _EXAMPLES:
                        done.examples.append(job_id)
                if self._clock() >= give_up:
                    done.complete, done.cursor = False, chunk[-1][0]
                    break
        return done

    def _newest(self, name: str, after: str | None) -> Iterator[tuple[str, int]]:
        """Each finished job with its newest generation that has a manifest."""
        current: tuple[str, int] | None = None
        for _, job_id, generation in self._record.manifests(name, after=f"{after}{_LAST}" if after else None):
            if current is not None and current[0] != job_id:
                yield current
                current = None
            current = (job_id, max(generation, current[1] if current else 0))
        if current is not None:
            yield current

    def _again(self, owner: Owner, name: str, job_id: str, generation: int, prefix: str, dry_run: bool) -> str | None:
        """None when it is not meant, empty when its next generation has begun, else the code of why not."""
        try:
            return self._start_again(owner, name, job_id, generation, prefix, dry_run)
        except TidemillError as error:
            if error.error_code != CODE:
                raise
            return CODE

    def _start_again(
        self, owner: Owner, name: str, job_id: str, generation: int, prefix: str, dry_run: bool
    ) -> str | None:
        job = self._ledger.job(job_id)
        if job is not None and job.generation >= generation:  # else an older copy of Redis was restored
            failed, found = job.state is JobState.failed, job.input
        else:
            manifest = self._record.get_manifest(name, job_id, generation)
            if manifest is None:
                return None
            failed, found = manifest.state == "failed", manifest.input
        if not failed or found.bucket == self._record.bucket or not found.key.startswith(prefix):
            return None
        if dry_run:
            return ""
        try:
            self._calls.retry(owner, job_id)
        except (NotFound, Conflict, InvalidSpec, NotAllowed) as error:  # the last two: its input is refused
            return error.error_code
        return ""


def _count(counts: dict[str, int], reason: str) -> None:
    counts[reason] = counts.get(reason, 0) + 1


def _places(function: FunctionRecord, prefix: str) -> list[tuple[str, str]]:
    """Where a replay looks, as (bucket, prefix), none inside another. Raises `InvalidSpec` when that is nowhere."""
    found = sorted(
        {
            (trigger.bucket, max(trigger.prefix, prefix, key=len))
            for trigger in function.spec.trigger
            if trigger.prefix.startswith(prefix) or prefix.startswith(trigger.prefix)
        }
    )
    if not found:
        theirs = ", ".join(f"{t.bucket}/{t.prefix}" for t in function.spec.trigger) or "none"
        raise InvalidSpec(
            f"{function.name} has no trigger below {prefix!r}" if prefix else f"{function.name} has no trigger",
            hint=f"Its triggers: {theirs}. A prefix is the beginning of keys, without the bucket.",
        )
    kept: list[tuple[str, str]] = []
    for bucket, below in found:
        if not any(bucket == b and below.startswith(p) for b, p in kept):
            kept.append((bucket, below))
    return kept
