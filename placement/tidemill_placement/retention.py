"""Retention: what has had its time goes, from the platform bucket and from the ledger.

The leader works through the bucket prefix by prefix, a little at a time: a turn ends after some milliseconds of CPU,
and the rest that follows keeps it below 1 % of a core. A prefix is listed again after a twentieth of its lifetime, at
least ten minutes, at most a day later. Whatever dies in between, the next pass goes on: each step is decided by what
the store shows, and the order makes each half-way state a harmless one:

    request    its generation has a manifest, older than `payloads`      (a request without one would be run again)
    cancel     its generation has a manifest
    payload    older than that, and no request names its job any more    (so that of an open request never goes)
    attempt    its generation has a manifest; or it is older than `attempts`, the ledger does not hold the job as open,
               and no commit without a manifest needs it
    commit,    older than `manifests`, no request, no job in the ledger, and the input is gone or another object now;
    manifest   in this order, because a commit without a manifest would be published again
    identity   with its last manifest: then nothing says any more that it is settled
    failure    older than `jobs`: it would be in no list any more
    log        older than `logs`
    results, code, uploads: see `leftovers.py`
    leftovers  probes and canaries older than a day

Where it is not sure (a bucket that is missing, a store that refuses, a damaged record), it keeps. The objects of users
are never touched.

Finished jobs leave the ledger after `jobs`, and earlier, the oldest first, while its memory is above 60 %.
"""

from __future__ import annotations

import threading
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import structlog

from tidemill.errors import InvalidSpec, NotAllowed, NotFound, TidemillError
from tidemill.failpoints import failpoint
from tidemill.ledger.api import Ledger
from tidemill.record import Record, keys
from tidemill.store import ObjectInfo
from tidemill_placement.lead import Lead
from tidemill_placement.leftovers import Leftovers, listed

_SHARE = 0.01  # of one core
_TURN_CPU_S = 0.02
_TURN_S = 2.0
_REST_S = 1.0
_RUST_S_PER_OBJECT = 4e-6  # CPU of the S3 client's own threads, which `thread_time` does not see
_OFTEN_S, _SELDOM_S, _PART = 600.0, 86_400.0, 20
_AGAIN_S = 60.0  # after a pass that broke off
_GRACE_S = 600.0  # after the manifest: another finisher may still be copying
_LEFTOVER_S = 86_400.0
_LEFTOVERS = ("probe/", "canary/")
_LEDGER_S = 60.0  # between two looks at the ledger; also so long a finished job stays in a full one
_LEDGER_CHUNK, _LEDGER_CHUNKS = 500, 20
MEMORY_SHARE = 0.6  # finished jobs leave the ledger above this, and none is listed again
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """Seconds that things are kept; the settings `TIDEMILL_RETENTION__*`."""

    requests: float
    payloads: float
    attempts: float
    logs: float
    manifests: float
    jobs: float
    results: float
    code: float
    uploads: float
    leftovers: float = _LEFTOVER_S


@dataclass(slots=True)
class _Pass:
    """One pass over a prefix, between two turns."""

    name: str
    steps: Iterator[int]  # each step gives the number of objects listed
    deleted: int = 0


@dataclass(slots=True)
class Retention:
    """Deletes what has had its time.

    Args:
        clock: seconds since 1970, for the age of objects.
        ledger_clock: the same by the ledger's server.
    """

    ledger: Ledger
    record: Record
    lifetimes: Lifetimes
    lead: Lead = field(default_factory=Lead)
    clock: Callable[[], float] = time.time
    ledger_clock: Callable[[], float] = time.time
    _due: dict[str, float] = field(default_factory=dict)
    _pass: _Pass | None = None
    _ledger_due: float = 0.0
    # A turn of a lease that was lost may still be under way in its thread.
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    def reset(self) -> None:
        """Forget how far a pass was: another leader may have gone on."""
        with self._one_at_a_time:
            self._pass = None

    def turn(self) -> float:
        """Do a little, and give the seconds to rest.

        Raises:
            StoreUnavailable, LedgerUnavailable: this pass begins anew later.
        """
        with self._one_at_a_time:
            return self._turn()

    def _turn(self) -> float:
        now = self.clock()
        if now >= self._ledger_due:
            self._ledger_due = now + _LEDGER_S
            self._forget_jobs()
        if self._pass is None:
            name = min(self._passes(), key=lambda name: self._due.get(name, 0.0))
            if (due := self._due.get(name, 0.0)) > now:
                return min(due, self._ledger_due) - now
            self._pass = _Pass(name, self._passes()[name](now))
        return self._go_on(self._pass, now)

    def _go_on(self, current: _Pass, now: float) -> float:
        began, cpu, spent_s = time.monotonic(), time.thread_time(), 0.0
        listed = 0
        try:
            while spent_s < _TURN_CPU_S and time.monotonic() - began < _TURN_S:
                step = next(current.steps, None)
                spent_s = time.thread_time() - cpu + listed * _RUST_S_PER_OBJECT
                if step is None:
                    self._ends(current, now)
                    break
                listed += step
        except TidemillError:
            self._pass = None
            self._due[current.name] = now + _AGAIN_S
            raise
        return max(_REST_S, spent_s / _SHARE)

    def _ends(self, done: _Pass, now: float) -> None:
        self._pass = None
        lifetime_s: float = getattr(self.lifetimes, done.name)
        self._due[done.name] = now + min(max(lifetime_s / _PART, _OFTEN_S), _SELDOM_S)
        if done.deleted:
            log.info("retention.deleted", what=done.name, objects=done.deleted)

    def _passes(self) -> dict[str, Callable[[float], Iterator[int]]]:
        """In the order of deletion; the names are those of the lifetimes."""
        left = Leftovers(self.ledger, self.record, self._delete)
        return {
            "requests": self._requests,
            "payloads": self._payloads,
            "attempts": self._attempts,
            "manifests": self._manifests,
            "jobs": lambda now: self._by_age((keys.FAILURES,), now - self.lifetimes.jobs),
            "logs": lambda now: self._by_age((keys.LOGS,), now - self.lifetimes.logs),
            "results": lambda now: left.results(now - self.lifetimes.results),
            "code": lambda now: left.code(now - self.lifetimes.code),
            "uploads": lambda now: left.uploads(now - self.lifetimes.uploads),
            "leftovers": lambda now: self._by_age(_LEFTOVERS, now - self.lifetimes.leftovers),
        }

    # -- the ledger ----------------------------------------------------------------------------------------------
    def _forget_jobs(self) -> None:
        now = self.ledger_clock()
        forgotten = self._expire(now - self.lifetimes.jobs, lambda: True)
        memory = self.ledger.memory()
        if memory.limit and memory.used > MEMORY_SHARE * memory.limit:
            early = self._expire(now - _LEDGER_S, self._pressed)
            if early:
                log.warning("ledger.forgets_early", jobs=early, used=memory.used, limit=memory.limit)
        if forgotten:
            log.info("ledger.forgot", jobs=forgotten)

    def _pressed(self) -> bool:
        memory = self.ledger.memory()
        return memory.used > MEMORY_SHARE * memory.limit

    def _expire(self, before: float, wanted: Callable[[], bool]) -> int:
        total = 0
        for _ in range(_LEDGER_CHUNKS):
            if not wanted():
                break
            found = self.ledger.expire(before, _LEDGER_CHUNK)
            total += found
            if found < _LEDGER_CHUNK:
                break
        return total

    # -- the bucket ----------------------------------------------------------------------------------------------
    def _listed(self, prefix: str, before: float) -> Iterator[tuple[int, ObjectInfo | None]]:
        return listed(self.record, prefix, before)

    def _head(self, key: str) -> ObjectInfo | None:
        return self.record.store.head(self.record.bucket, key)

    def _delete(self, key: str) -> None:
        self.record.store.delete(self.record.bucket, key)
        if self._pass is not None:
            self._pass.deleted += 1

    def _by_age(self, prefixes: tuple[str, ...], before: float) -> Iterator[int]:
        for prefix in prefixes:
            for step, info in self._listed(prefix, before):
                if info is not None:
                    self._delete(info.key)
                yield step

    def _requests(self, now: float) -> Iterator[int]:
        before = now - self.lifetimes.payloads
        for step, info in self._listed(keys.REQUESTS, before):
            names = keys.names(info.key) if info is not None else None
            if info is not None and names is not None:
                manifest = self._head(keys.manifest(*names))
                if manifest is not None and manifest.last_modified < before:
                    self._delete(info.key)
                    failpoint("retention.request_deleted")
            yield step
        for step, info in self._listed(keys.CANCELS, now - _GRACE_S):
            names = keys.names(info.key) if info is not None else None
            if info is not None and names is not None and self._head(keys.manifest(*names)) is not None:
                self._delete(info.key)
            yield step

    def _payloads(self, now: float) -> Iterator[int]:
        asked: array[int] = array("Q")  # 8 bytes for each: a digest that collides keeps a payload for longer
        for step, info in self._listed(keys.REQUESTS, float("inf")):
            names = keys.names(info.key) if info is not None else None
            if names is not None:
                asked.append(int(names[1][:16], 16))
            yield step
        asked = array("Q", sorted(asked))
        for step, info in self._listed(keys.PAYLOADS, now - self.lifetimes.payloads):
            if info is not None:
                job_id = info.key.split("/")[1]
                if not _has(asked, job_id) and not self._open(job_id):
                    self._delete(info.key)
                    failpoint("retention.payload_deleted")
            yield step

    def _open(self, job_id: str) -> bool:
        job = self.ledger.job(job_id)
        return job is not None and not job.state.terminal

    def _attempts(self, now: float) -> Iterator[int]:
        functions = self._functions()
        group, kept = "", ""  # what is kept of the job and generation in hand: keys that start like this
        for step, info in self._listed(keys.ATTEMPTS, now - _GRACE_S):
            if info is not None:
                name, _, rest = info.key.removeprefix(keys.ATTEMPTS).partition("/")
                if name != group:
                    group, kept = name, self._kept_of(name, functions, now)
                    yield 0
                old = info.last_modified < now - self.lifetimes.attempts
                if kept == _NOTHING or (old and kept != _ALL and not rest.startswith(kept)):
                    self._delete(info.key)
                    failpoint("retention.attempt_deleted")
            yield step

    def _kept_of(self, name: str, functions: list[str], now: float) -> str:
        """What has to stay below `attempts/<job>.<generation>/`: all, nothing, or what starts with the text given (and
        what is young)."""
        job_id, dot, generation = name.partition(".")
        if not (dot and generation.isdecimal()):
            return _ALL
        job = self.ledger.job(job_id)
        seen = dict.fromkeys([job.function, *functions] if job is not None else functions)
        for function in seen:
            manifest = self._head(keys.manifest(function, job_id, int(generation)))
            if manifest is not None:
                return _NOTHING if manifest.last_modified < now - _GRACE_S else _ALL
        for function in seen:
            try:
                commit = self.record.get_commit(function, job_id, int(generation))
            except TidemillError as error:
                if error.error_code != "damaged_record":
                    raise
                return _ALL
            if commit is not None:
                return f"{commit.epoch}-{commit.attempt}-{commit.nonce}/"
        return _ALL if job is not None and not job.state.terminal else _YOUNG

    def _functions(self) -> list[str]:
        """The names of all functions that ever were: their records stay as tombstones."""
        found = []
        for page in self.record.store.pages(self.record.bucket, keys.FUNCTIONS):
            for info in page:
                if info.key.endswith(keys.CURRENT):
                    found.append(info.key.removeprefix(keys.FUNCTIONS).removesuffix(keys.CURRENT))
        return found

    def _manifests(self, now: float) -> Iterator[int]:
        for step, info in self._listed(keys.MANIFESTS, now - self.lifetimes.manifests):
            names = keys.names(info.key) if info is not None else None
            if info is not None and names is not None and self._forgettable(*names):
                self._delete(keys.commit(*names))
                failpoint("retention.commit_deleted")
                self._delete(info.key)
                failpoint("retention.manifest_deleted")
                self._unsettle(names[0], names[1])
            yield step

    def _unsettle(self, function: str, job_id: str) -> None:
        others = self.record.store.pages(self.record.bucket, f"{keys.MANIFESTS}{function}/{job_id}.")
        if not any(page for page in others):
            self.ledger.unsettle([job_id], fence=self.lead.fence)

    def _forgettable(self, function: str, job_id: str, generation: int) -> bool:
        """Whether nobody can ask for this job again: no request of this or the next generation, no job in the ledger,
        and an input that is surely gone or another one."""
        if self._head(keys.request(function, job_id, generation)) is not None:
            return False
        if self._head(keys.request(function, job_id, generation + 1)) is not None or self.ledger.job(job_id):
            return False
        try:
            manifest = self.record.get_manifest(function, job_id, generation)
            if manifest is None or not self.record.store.bucket_exists(manifest.input.bucket):
                return False
            source = manifest.input
            there = self.record.store.head(source.bucket, source.key)
        except (InvalidSpec, NotAllowed, NotFound) as error:
            log.debug("retention.unsure", job_id=job_id, error=str(error))
            return False
        except TidemillError as error:
            if error.error_code != "damaged_record":
                raise
            log.warning("retention.unsure", job_id=job_id, error=str(error))
            return False
        was = (source.etag, source.size, source.last_modified)
        return there is None or (there.etag, there.size, there.last_modified) != was


_ALL, _NOTHING, _YOUNG = "all", "nothing", "only what is young"  # no attempt's name looks like these


def _has(digests: array[int], job_id: str) -> bool:
    try:
        wanted = int(job_id[:16], 16)
    except ValueError:
        return True  # not a name of ours
    at = bisect_left(digests, wanted)
    return at < len(digests) and digests[at] == wanted
