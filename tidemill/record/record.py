"""The record: requests, commits, manifests, functions, pools and the epoch, as objects of the platform bucket.

The bucket is the truth, Redis is fast: all of this outlives every process and every Redis. What must be decided once
(a request's identity, a job's end, a manifest) is created by If-None-Match; the first writer wins, and every other one
reads who that was. `publish.py` brings a committed job's outputs to their users, `ending.py` ties record and ledger.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

from tidemill.errors import Conflict, NotFound, PreconditionFailed, StoreUnavailable, TidemillError
from tidemill.ledger.api import PoolState, Token
from tidemill.models import (
    CancelRecord,
    CommitRecord,
    EpochRecord,
    FunctionRecord,
    Manifest,
    PoolRecord,
    PoolSpec,
    RequestRecord,
)
from tidemill.models.base import Model
from tidemill.record import code, keys
from tidemill.record.damage import CODE, damage_skipped
from tidemill.record.objects import Objects
from tidemill.record.outputs import safe_name
from tidemill.record.publish import Publication
from tidemill.store.api import Store

M = TypeVar("M", bound=Model)
_TRIES = 10


def _itself(record: Model) -> Model:
    return record


class Dated(NamedTuple):
    """Function, job and generation of an object, and when it was written: seconds since 1970, by the store's clock."""

    at: int
    name: tuple[str, str, int]


class Record:
    """Everything durable. Thread-safe. Errors of every method are those of the store."""

    def __init__(self, store: Store, bucket: str = "tidemill", sleep: Callable[[float], None] = time.sleep) -> None:
        self.store = store
        self.bucket = bucket
        self._objects = Objects(store, bucket, sleep)

    def prepare(self) -> None:
        """Make the platform bucket. Raises `ServiceUnavailable` for a store without conditional puts."""
        self.store.ensure_bucket(self.bucket)
        self.store.probe_conditional_put(self.bucket)

    # -- requests and payloads -----------------------------------------------------------------------------------
    def put_request(self, request: RequestRecord) -> RequestRecord:
        """Accept a call once; gives the stored record, which is the first one. It equals `request` when this call wrote
        it, also when the answer was lost: that of another call has another `created_at`.

        Raises:
            Conflict: the first one was another call under the same key.
        """
        key = keys.request(request.function, request.job_id, request.generation)
        stored = self._objects.create(key, request)
        if stored.fingerprint != request.fingerprint:
            raise Conflict(
                f"the idempotency key {request.key!r} was used before, with another file or other parameters",
                code="idempotency_conflict",
                hint="Use a new key for a new call.",
            )
        return stored

    def get_request(self, function: str, job_id: str, generation: int) -> RequestRecord | None:
        return self._objects.read(keys.request(function, job_id, generation), RequestRecord)

    def delete_request(self, request: RequestRecord) -> None:
        self.store.delete(self.bucket, keys.request(request.function, request.job_id, request.generation))

    def payload_key(self, job_id: str, name: str, number: int = 0) -> str:
        """Where the payload of a call goes; `name` is the caller's and is made safe."""
        return keys.payload(job_id, number, safe_name(name))

    def open_requests(self) -> Iterator[tuple[str, str, int]]:
        """Function, job and generation of every request record that retention has not removed.

        Whether one is done already the ledger's settled set says (or its manifest): no listing of manifests is paid
        for here.
        """
        return self._names(keys.REQUESTS)

    # -- cancels -------------------------------------------------------------------------------------------------
    def put_cancel(self, cancel: CancelRecord) -> None:
        """Keep the wish to end a running job; the first one counts."""
        self._objects.create(keys.cancel(cancel.function, cancel.job_id, cancel.generation), cancel)

    def get_cancel(self, function: str, job_id: str, generation: int) -> CancelRecord | None:
        return self._objects.read(keys.cancel(function, job_id, generation), CancelRecord)

    def cancels(self) -> Iterator[tuple[str, str, int]]:
        """Function, job and generation of every accepted cancel that retention has not removed; names only."""
        return self._names(keys.CANCELS)

    # -- commits and manifests -----------------------------------------------------------------------------------
    def commit(self, commit: CommitRecord) -> tuple[bool, CommitRecord]:
        """Decide the end of a job: whether ours is the record that counts, and that record.

        One conditional put; what it wrote is given back itself, what was there already is another value. When the
        answer was lost, our own nonce in the stored record says that we won.
        """
        stored = self._objects.create(keys.commit(commit.function, commit.job_id, commit.generation), commit)
        ours = (stored.nonce, stored.epoch, stored.attempt) == (commit.nonce, commit.epoch, commit.attempt)
        return ours, stored

    def get_commit(self, function: str, job_id: str, generation: int) -> CommitRecord | None:
        return self._objects.read(keys.commit(function, job_id, generation), CommitRecord)

    def get_manifest(self, function: str, job_id: str, generation: int) -> Manifest | None:
        return self._objects.read(keys.manifest(function, job_id, generation), Manifest)

    def manifests(self, function: str | None = None, after: str | None = None) -> Iterator[tuple[str, str, int]]:
        """Function, job and generation of every finished job; names only. With a function, `after` begins behind the
        manifest of this name (`<job>.<generation>.json`, or any text in the order of names)."""
        prefix = f"{keys.MANIFESTS}{function}/" if function else keys.MANIFESTS
        return self._names(prefix, f"{prefix}{after}" if after else None)

    def dated_manifests(self) -> Iterator[Dated]:
        """Every finished job and generation, with the time of its manifest; names only."""
        return self._dated(keys.MANIFESTS)

    def dated_failures(self) -> Iterator[Dated]:
        """Every failed job and generation that retention has not removed, with the time of its failure; names only."""
        return self._dated(keys.FAILURES)

    def commits(self, function: str | None = None) -> Iterator[tuple[str, str, int]]:
        """Function, job and generation of every committed job; names only."""
        return self._names(f"{keys.COMMITS}{function}/" if function else keys.COMMITS)

    def publish(self, commit: CommitRecord, *, fresh: bool = False) -> Manifest:
        """Bring the outputs to their keys and write the manifest. Anybody may do it, at any time, again.

        `fresh`: the caller wrote this commit a moment ago, so nobody can have published it, and nobody is asked.
        """
        found = None if fresh else self.get_manifest(commit.function, commit.job_id, commit.generation)
        if found is not None:
            return found
        previous = None
        if commit.generation > 1:
            with damage_skipped():  # it only says what lies there of older generations
                previous = self.get_manifest(commit.function, commit.job_id, commit.generation - 1)
        manifest = Publication(self.store, self.bucket, commit, previous).run()
        if manifest.state == "failed":
            self.store.put(self.bucket, keys.failure(commit.function, commit.job_id, commit.generation), b"")
        return self._objects.create(keys.manifest(commit.function, commit.job_id, commit.generation), manifest)

    def attempt_prefix(self, token: Token) -> str:
        """The prefix of an attempt's large outputs, with a slash at its end."""
        return keys.attempt(token)

    # -- functions, code, pools ----------------------------------------------------------------------------------
    def put_function(self, record: FunctionRecord) -> None:
        """Keep this revision, and make it the current one, whatever is there."""
        self.change_function(record.name, lambda _: record)

    def change_function(
        self, name: str, change: Callable[[FunctionRecord | None], FunctionRecord | None]
    ) -> FunctionRecord | None:
        """Make the current record what `change` makes of the one that is there, and give it. When somebody else writes
        at the same moment, `change` gets what is there then. It gets None when there is none, or a damaged one, and
        gives None to leave all as it is.

        Raises:
            TidemillError: the record is damaged, and `change` gave None.
        """

        def kept(old: FunctionRecord | None) -> FunctionRecord | None:
            record = change(old)
            if record is not None and record != old:
                self._objects.replace(keys.function(name, record.revision), record)
            return record

        return self._change(keys.function(name), FunctionRecord, kept)

    def functions(self) -> list[FunctionRecord]:
        """The current revision of every function, deleted ones too (`deleted_at`); without damaged ones."""
        return list(self._readable(filter(_is_current, self._keys(keys.FUNCTIONS)), FunctionRecord))

    def function_names(self) -> set[str]:
        """The names of all functions, deleted ones too; one listing."""
        return {key.split("/")[1] for key in self._keys(keys.FUNCTIONS) if _is_current(key)}

    def get_function(self, name: str, revision: str | None = None) -> FunctionRecord | None:
        return self._objects.read(keys.function(name, revision), FunctionRecord)

    def revisions(self, name: str) -> list[FunctionRecord] | None:
        """All revisions of a function that are kept, in no order; None when one of them cannot be read."""
        found = [key for key in self._keys(f"{keys.FUNCTIONS}{name}/") if not _is_current(key)]
        records = list(self._readable(found, FunctionRecord))
        return records if len(records) == len(found) else None

    def put_code(self, archive: Path, in_use: str | None = None) -> tuple[str, int]:
        """Store a code archive; gives its SHA-256 in hex and its size in bytes. `in_use` is the SHA-256 of the one that
        its function has now, which need not be written again."""
        return code.put_code(self.store, self.bucket, archive, in_use)

    def fetch_code(self, sha256: str, into: Path) -> None:
        """Unpack a code archive into a folder. Raises `NotFound`, and `InvalidSpec` for a bad archive."""
        code.fetch_code(self.store, self.bucket, sha256, into)

    def put_pool(self, spec: PoolSpec) -> PoolState:
        """Keep a pool, and give it as it is kept: one that was told to drain goes on draining. A damaged record is
        written over."""
        record = self._change_pool(spec.name, lambda old: PoolRecord.of(spec, old is not None and old.draining))
        return PoolState(spec, record is not None and record.draining)

    def drain_pool(self, name: str, draining: bool) -> PoolState | None:
        """Note whether a pool takes work; None when there is no such pool."""
        record = self._change_pool(name, lambda old: None if old is None else PoolRecord.of(old.spec, draining))
        return None if record is None else PoolState(record.spec, draining)

    def _change_pool(self, name: str, change: Callable[[PoolRecord | None], PoolRecord | None]) -> PoolRecord | None:
        # Only one that drains says so: the others can be read by versions that know no draining.
        return self._change(keys.pool(name), PoolRecord, change, lambda pool: pool if pool.draining else pool.spec)

    def _change(
        self, key: str, model: type[M], change: Callable[[M | None], M | None], body: Callable[[M], Model] = _itself
    ) -> M | None:
        for _ in range(_TRIES):
            try:
                found = self._objects.read_tagged(key, model)
            except TidemillError as error:
                if error.error_code != CODE or (record := change(None)) is None:
                    raise
                self._objects.replace(key, record)
                return record
            record = change(found[0] if found is not None else None)
            if record is None or (found is not None and record == found[0]):
                return record
            try:
                self._objects.exchange(key, body(record), found[1] if found is not None else None)
            except PreconditionFailed:
                continue  # somebody changed it at the same moment
            return record
        raise StoreUnavailable(f"{key} changes all the time")

    def pools(self) -> list[PoolState]:
        """All pools, without damaged ones."""
        return [PoolState(pool.spec, pool.draining) for pool in self._readable(self._keys(keys.POOLS), PoolRecord)]

    def delete_pool(self, name: str) -> None:
        self.store.delete(self.bucket, keys.pool(name))

    # -- epoch ---------------------------------------------------------------------------------------------------
    def read_epoch(self) -> tuple[EpochRecord, str] | None:
        """The epoch and its ETag, or None before the first one."""
        return self._objects.read_tagged(keys.EPOCH, EpochRecord)

    def write_epoch(self, record: EpochRecord, if_match: str | None) -> str:
        """Write the epoch over the one with this ETag (None: the first one), and give the new ETag.

        Raises:
            PreconditionFailed: another leader wrote since.
        """
        return self._objects.exchange(keys.EPOCH, record, if_match)

    # -- logs ----------------------------------------------------------------------------------------------------
    def put_log(self, function: str, job_id: str, generation: int, text: bytes) -> None:
        self.store.put(
            self.bucket, keys.log(function, job_id, generation), text, content_type="text/plain; charset=utf-8"
        )

    def get_log(self, function: str, job_id: str, generation: int) -> bytes | None:
        try:
            return self.store.get(self.bucket, keys.log(function, job_id, generation))
        except NotFound:
            return None

    # -- damage --------------------------------------------------------------------------------------------------
    def damaged(self) -> dict[str, str]:
        """The records that could not be read when this process read them last: key -> what is wrong."""
        return self._objects.damaged()

    def look_again(self, names: Iterable[str]) -> dict[str, str]:
        """Read the records of these keys again; gives those that cannot be read: key -> what is wrong."""
        wanted = set(names)
        for key in wanted:
            if (model := _model_of(key)) is not None:
                with damage_skipped():
                    self._objects.read(key, model)
        return {key: why for key, why in self.damaged().items() if key in wanted}

    # ------------------------------------------------------------------------------------------------------------
    def _readable(self, names: Iterable[str], model: type[M]) -> Iterator[M]:
        for key in names:
            found = None
            with damage_skipped():
                found = self._objects.read(key, model)
            if found is not None:
                yield found

    def _keys(self, prefix: str, after: str | None = None) -> Iterator[str]:
        for page in self.store.pages(self.bucket, prefix, after):
            yield from (info.key for info in page)

    def _names(self, prefix: str, after: str | None = None) -> Iterator[tuple[str, str, int]]:
        return (dated.name for dated in self._dated(prefix, after))

    def _dated(self, prefix: str, after: str | None = None) -> Iterator[Dated]:
        for page in self.store.pages(self.bucket, prefix, after):
            for info in page:
                if (name := keys.names(info.key)) is not None:
                    yield Dated(info.last_modified, name)


def _model_of(key: str) -> type[Model] | None:
    models: dict[str, type[Model]] = {
        keys.REQUESTS: RequestRecord,
        keys.CANCELS: CancelRecord,
        keys.COMMITS: CommitRecord,
        keys.MANIFESTS: Manifest,
        keys.FUNCTIONS: FunctionRecord,
        keys.POOLS: PoolRecord,
    }
    return next((model for prefix, model in models.items() if key.startswith(prefix)), None)


def _is_current(key: str) -> bool:
    return key.endswith(keys.CURRENT) and key.count("/") == 2
