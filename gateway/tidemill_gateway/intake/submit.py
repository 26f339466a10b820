"""From an object to its job: HEAD, the written rules, the identity, and one ledger call, which rings the agent.

Events and listings both come through here. The HEAD decides what the object is (its answer is also where the hop count
stands), so a forged or stale event can at worst point at an object that is a job anyway.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from tidemill.errors import InvalidSpec, NotAllowed, NotFound
from tidemill.failpoints import failpoint
from tidemill.ledger.api import Ledger, NewJob, Submitted
from tidemill.models import BucketEvent, FunctionRecord, JobInput, Trigger, object_job_id
from tidemill.store import ObjectInfo, Store
from tidemill_gateway.catalogue import Table
from tidemill_gateway.intake import rules
from tidemill_gateway.intake.memo import Memo

Bell = Callable[[str, str], str]  # job id, function -> the message that rings an agent
HOP = "tidemill-hop"
_LIVELY = 16
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of one object: its identity by HEAD for each function, how many jobs are new, or that it is none.

    `refused`: the store does not show it. `moved`: the table of functions is an old one, so not everything was done.
    """

    ids: Mapping[str, str]
    created: int = 0
    ignored: bool = False
    refused: bool = False
    moved: bool = False


class Submitter:
    """Submits jobs. One for each process; safe from any thread."""

    def __init__(self, ledger: Ledger, store: Store, bell: Bell, *, max_hops: int) -> None:
        self._ledger = ledger
        self._store = store
        self._bell = bell
        self._max_hops = max_hops
        self._noted: Memo[tuple[str, str, str], None] = Memo(50_000, 600.0)
        self._lively: dict[tuple[str, str], float] = {}
        self._lively_lock = threading.Lock()

    def submit(self, job: NewJob, *, version: int | None = None) -> Submitted:
        """Hand a job to the ledger, which rings the agent whose grant it used. `version` as in `Ledger.submit`.

        Raises:
            LedgerUnavailable: Redis does not answer, or has no epoch.
        """
        submitted = self._ledger.submit(job, version=version, bell=self._bell(job.id, job.function))
        failpoint("intake.submitted")
        return submitted

    def event(self, table: Table, event: BucketEvent) -> Taken:
        """Take the object that an event points at; nothing when no trigger is meant. The table may be an old one: jobs
        are accepted only while its version is the ledger's.

        Raises:
            StoreUnavailable, LedgerUnavailable: the next listing finds the object.
        """
        readings = [key for key in event.keys if rules.plain(key) and table.targets(event.bucket, key)]
        for key in readings:
            if reason := rules.ignored_name(key):
                self.note(event.bucket, key, reason)
                continue
            if (info := self._store.head(event.bucket, key)) is not None:
                return self._take(table, info, look_first=False, version=table.version)
        return Taken({})

    def listed(self, table: Table, bucket: str, key: str) -> Taken:
        """Take an object that a listing shows and the ledger does not know. One that cannot be looked at is noted, so
        that it keeps no other from being taken. Raises as `event`."""
        try:
            info = self._store.head(bucket, key)
        except (InvalidSpec, NotAllowed, NotFound) as error:
            if self.note(bucket, key, rules.refused(error)):
                log.info("intake.not_readable", bucket=bucket, key=key, code=error.error_code, error=error.message)
            return Taken({}, refused=True)
        return self._take(table, info, look_first=True) if info is not None else Taken({})

    def lively(self, within_s: float) -> list[tuple[str, str]]:
        """Give the (bucket, folder) pairs where new jobs came from in the last seconds, the newest ones of many."""
        oldest = time.monotonic() - within_s
        with self._lively_lock:
            return sorted(place for place, at in self._lively.items() if at >= oldest)

    def note(self, bucket: str, key: str, reason: str) -> bool:
        """Tell the operator why an object is no job; once, not with each listing. Gives whether it is news."""
        news = self._noted.put((bucket, key, reason), None)
        if news:
            self._ledger.note_ignored(bucket, key, reason)
        return news

    def _take(self, table: Table, info: ObjectInfo, *, look_first: bool, version: int | None = None) -> Taken:
        hop = rules.hop_of(info.metadata.get(HOP))
        targets = current_targets(table, info)
        ids = {record.name: identity(record, self._store.name, info) for record, _ in targets}
        if not targets:
            return Taken(ids)
        if reason := rules.ignored_hop(hop, self._max_hops):
            self.note(info.bucket, info.key, reason)
            return Taken(ids, ignored=True)
        created = 0
        for record, trigger in targets:
            if reason := rules.ignored_size(info.size, trigger):
                self.note(info.bucket, info.key, reason)
                continue
            params = table.defaults.get(record.name, {})
            job = object_job(record, ids[record.name], info, hop, params, look_first=look_first)
            started = time.perf_counter()
            failpoint("intake.looked_at")
            submitted = self.submit(job, version=version)
            if submitted.moved:
                return Taken(ids, created, moved=True)
            created += submitted.created
            if submitted.created:
                self._enliven(info.bucket, info.key)
                log.info(
                    "job.accepted",
                    job_id=job.id,
                    function=job.function,
                    bucket=info.bucket,
                    key=info.key,
                    via="listing" if look_first else "event",
                    agent=submitted.agent,
                    submit_ms=round((time.perf_counter() - started) * 1e3, 2),
                )
        return Taken(ids, created)

    def _enliven(self, bucket: str, key: str) -> None:
        place = (bucket, key[: key.rfind("/") + 1])
        with self._lively_lock:
            self._lively.pop(place, None)
            self._lively[place] = time.monotonic()  # now the last one
            if len(self._lively) > _LIVELY:
                del self._lively[next(iter(self._lively))]


def current_targets(table: Table, info: ObjectInfo) -> Sequence[tuple[FunctionRecord, Trigger]]:
    """Give the functions whose trigger matches the object and is not younger than it (rule 8)."""
    found = table.targets(info.bucket, info.key)
    return [pair for pair in found if pair[0].takes(pair[1], info.key, info.last_modified)]


def identity(record: FunctionRecord, store: str, info: ObjectInfo) -> str:
    """Give the job id of an object for a function; from a HEAD and from a listing alike."""
    return object_job_id(record.name, store, info.bucket, info.key, info.etag, info.size, info.last_modified)


def input_of(info: ObjectInfo, *, hop: int = 0, name: str | None = None) -> JobInput:
    """Give an object as the input of a job."""
    return JobInput(
        bucket=info.bucket,
        key=info.key,
        version_id=info.version_id,
        etag=info.etag,
        size=info.size,
        last_modified=info.last_modified,
        content_type=info.content_type,
        name=name,
        hop=hop,
    )


def object_job(
    record: FunctionRecord, job_id: str, info: ObjectInfo, hop: int, params: Mapping[str, Any], *, look_first: bool
) -> NewJob:
    return NewJob(
        id=job_id,
        function=record.name,
        input=input_of(info, hop=hop),
        revision=record.revision,
        params=params,
        owner=record.owner,
        max_attempts=record.spec.limits.attempts,
        look_first=look_first,
    )
