"""API calls that make, end and repeat jobs. Sync: each blocks on store and ledger, and runs in a thread.

A call is durable before it is answered: payload, then request record (`If-None-Match: *`), then the ledger. If the
process dies in between, the reconciler finds the record. The record is also the idempotency: the same key with the
same content is the same job, with another content a conflict. Payload keys carry the content's digest, so a payload
is never overwritten by another one.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, Any

import structlog

from tidemill.errors import Conflict, LedgerUnavailable, NotAllowed, NotFound, PreconditionFailed
from tidemill.failpoints import failpoint
from tidemill.ledger.api import Ledger, NewJob
from tidemill.models import (
    CancelRecord,
    FunctionRecord,
    Job,
    JobError,
    JobInput,
    JobState,
    RequestRecord,
    request_job_id,
)
from tidemill.record import Record
from tidemill.record.ending import End, finish
from tidemill.store import Store
from tidemill_gateway import params as parameters
from tidemill_gateway.auth import Owner
from tidemill_gateway.catalogue import Catalogue
from tidemill_gateway.intake.rules import hop_of
from tidemill_gateway.intake.submit import HOP, Submitter, input_of
from tidemill_gateway.lookup import Lookup
from tidemill_gateway.metrics import Metrics
from tidemill_gateway.pressure import Pressure

_FUNCTION = re.compile(r"[a-z][a-z0-9-]{0,38}")
_NAME_BYTES = 200
_SMALL_BYTES = 2**20
log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Payload:
    """A file that came with a call: its name as the caller gave it, and the bytes in a seekable file."""

    name: str
    file: IO[bytes]
    content_type: str | None = None


@dataclass(frozen=True)
class Named:
    """An object of the store that a call names."""

    bucket: str
    key: str
    version_id: str | None = None


@dataclass(frozen=True)
class Call:
    """One call of a function. `key` is the caller's idempotency key."""

    function: str
    subject: Payload | Named
    params: Any
    key: str | None = None


class Calls:
    """Accepts, finds, cancels and repeats jobs. One for each process; safe from any thread."""

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
        lease_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._ledger = ledger
        self._record = record
        self._store = store
        self._catalogue = catalogue
        self._submitter = submitter
        self._pressure = pressure
        self._metrics = metrics
        self._lookup = Lookup(ledger, record)
        self._holder = holder
        self._lease_s = lease_s
        self._clock = clock

    # -- accept --------------------------------------------------------------------------------------------------
    def accept(self, owner: Owner, call: Call) -> Job:
        """Give the job of a call, which is durable now.

        Raises:
            NotFound: no such function, bucket or object.
            InvalidSpec: wrong parameters.
            NotAllowed: a bucket of somebody else.
            Conflict: the idempotency key was used with another content.
            ServiceUnavailable: the ledger is full, or a server does not answer; try again with the same key.
        """
        self._pressure.check()
        function = self.function(call.function)
        values = parameters.check(function.spec.params, call.params, call.function)
        job_id = request_job_id(function.name, owner.name, call.key or secrets.token_hex(16))
        digest = _digest_of(call.subject)
        fingerprint = _sha256(json.dumps([function.name, values, digest], sort_keys=True).encode())
        stored = self._record.get_request(function.name, job_id, 1) if call.key else None
        request = None
        if stored is None:
            if isinstance(call.subject, Named):
                found = self._named(owner, call.subject)
            else:
                found = self._payload(job_id, digest, call.subject)
            failpoint("accept.payload_stored")
            request = RequestRecord(
                job_id=job_id,
                function=function.name,
                owner=owner.name,
                input=found,
                params=values,
                fingerprint=fingerprint,
                key=call.key,
                created_at=self._clock(),
            )
            try:
                stored = self._record.put_request(request)
            except Conflict:  # another call came in between
                return self._earlier(owner, call, job_id, digest, values)
            failpoint("accept.request_stored")
        if stored.fingerprint == fingerprint:
            job = self._submit(function, stored, look_first=False, via="api")
            if self._same_call(job, stored.input, stored.params):
                return job
            if stored == request:  # ours, and no other call's: it would keep the key from those who call it rightly
                self._record.delete_request(stored)
                raise _other_content(call)
        return self._earlier(owner, call, job_id, digest, values)

    def function(self, name: str) -> FunctionRecord:
        """Give a function. The bucket has the last word: a ledger that was lost knows none until it is restored.

        Raises:
            NotFound: with the nearest name.
        """
        functions = self._catalogue.current().functions
        if name in functions:
            return functions[name]
        stored = self._record.get_function(name) if _FUNCTION.fullmatch(name) else None
        if stored is not None and stored.deleted_at is None:
            return stored
        close = difflib.get_close_matches(name, functions, 1, 0.5)
        hint = f"Did you mean {close[0]}?" if close else "`tidemill function list` shows what is deployed."
        raise NotFound(f"there is no function {name}", hint=hint)

    def _named(self, owner: Owner, subject: Named) -> JobInput:
        if subject.bucket == self._record.bucket:
            raise NotAllowed(
                f"the platform bucket {subject.bucket} is no input", hint="Copy the object to a bucket of your own."
            )
        owner.check_bucket(subject.bucket)
        info = self._store.head(subject.bucket, subject.key, subject.version_id)
        if info is None:
            raise NotFound(
                f"there is no object {subject.bucket}/{subject.key}",
                hint="Upload it first: tidemill upload FILE BUCKET/.",
            )
        source = input_of(info, hop=hop_of(info.metadata.get(HOP)))
        return source.model_copy(update={"pinned": bool(subject.version_id)})

    def _payload(self, job_id: str, digest: str, subject: Payload) -> JobInput:
        key = self._record.payload_key(job_id, digest[:32])
        subject.file.seek(0)
        size = subject.file.seek(0, 2)
        subject.file.seek(0)
        body: Any = subject.file.read() if size <= _SMALL_BYTES else subject.file
        try:
            self._store.put(self._record.bucket, key, body, content_type=subject.content_type, if_none_match=True)
        except PreconditionFailed:
            log.debug("payload.already_there", job_id=job_id)  # an earlier try of the same call
        info = self._store.head(self._record.bucket, key)
        if info is None:
            raise NotFound(f"the payload of job {job_id} is gone from the store", hint="Send it again.")
        return input_of(info, name=safe_name(subject.name))

    def _earlier(self, owner: Owner, call: Call, job_id: str, digest: str, params: Mapping[str, Any]) -> Job:
        """Give the job of a call whose request is not under its key, but another one. That may have been left by a
        wrong call that died before it took it back, or is about to: the job itself tells.

        Raises:
            Conflict: there is no such job, or it is of another content too.
        """
        try:
            job = self._lookup.find(job_id)
            if isinstance(call.subject, Named):
                source = self._named(owner, call.subject)
            else:
                key = self._record.payload_key(job_id, digest[:32])
                source = JobInput(bucket=self._record.bucket, key=key, etag="", size=0)
        except (NotFound, LedgerUnavailable):
            raise _other_content(call) from None
        if not self._same_call(job, source, params):
            raise _other_content(call)
        return job

    def _same_call(self, job: Job, now: JobInput, params: Mapping[str, Any]) -> bool:
        """Whether a job of this id is the one that was called for. Retention takes a request before its manifest: a job
        that ended long ago may have come from the same key with another content."""
        was = job.input
        same = (was.bucket, was.key, job.params) == (now.bucket, now.key, params)
        if not same or now.bucket == self._record.bucket:
            return same  # the key of a payload holds the digest of its content
        return (was.etag, was.size, _version_of(was)) == (now.etag, now.size, _version_of(now))

    def _submit(self, function: FunctionRecord, request: RequestRecord, *, look_first: bool, via: str) -> Job:
        submitted = self._submitter.submit(
            NewJob(
                id=request.job_id,
                function=function.name,
                input=request.input,
                revision=function.revision,
                params=request.params,
                owner=request.owner,
                generation=request.generation,
                max_attempts=function.spec.limits.attempts,
                look_first=look_first,
            )
        )
        failpoint("accept.submitted")
        if submitted.created:
            self._metrics.jobs_accepted.labels(via).inc()
            log.info(
                "job.accepted",
                job_id=request.job_id,
                function=function.name,
                generation=request.generation,
                via=via,
                size=request.input.size,
                agent=submitted.agent,
            )
        return self._lookup.find(request.job_id)

    # -- find ----------------------------------------------------------------------------------------------------
    def job(self, owner: Owner, job_id: str) -> Job:
        """Give a job of this owner, from the ledger or, when it finished long ago, from its manifest.

        Raises:
            NotFound: there is none.
            LedgerUnavailable: the ledger is being restored, and nobody can say.
        """
        return owner.check_job(self._lookup.find(job_id))

    # -- cancel and retry ----------------------------------------------------------------------------------------
    def cancel(self, owner: Owner, job_id: str) -> Job:
        """Ask for the end of a job. One that waits ends at once; a running one within two seconds; one that is over
        stays as it is. Gives it as it is then. The end of a running one takes a moment, so the wish is kept in the
        bucket before the answer: a ledger that loses its memory in that moment hears of it from there.

        Raises:
            NotFound: there is none.
            LedgerUnavailable: the ledger does not know this generation of it yet: its retry is being accepted, or the
                ledger is being restored.
        """
        asked = self.job(owner, job_id)
        if asked.state.terminal:
            return asked
        if asked.state is JobState.running:
            self._keep_cancel(asked, owner)
        _, claim = self._ledger.cancel(job_id, self._holder, self._lease_s)
        if claim is not None:
            error = JobError(code="cancelled", message=f"cancelled by {owner.name} before it ran")
            function = self._ledger.function(claim.job.function)
            finish(self._ledger, self._record, claim, function, End(outcome="cancelled", error=error), self._lease_s)
        log.info("job.cancel", job_id=job_id, owner=owner.name, waited=claim is not None)
        job = self.job(owner, job_id)
        if job.state.terminal or job.state is JobState.committed or job.generation != asked.generation:
            return job
        if not job.cancel_requested:
            raise LedgerUnavailable(
                f"generation {job.generation} of job {job_id} is not in the ledger yet: its retry has just begun,"
                " or the ledger lost its memory and is being restored",
                hint="Cancel it again in some seconds.",
            )
        if asked.state is not JobState.running:  # it was claimed after we looked
            self._keep_cancel(job, owner)
        return job

    def _keep_cancel(self, job: Job, owner: Owner) -> None:
        self._record.put_cancel(_cancel_of(job, owner, self._clock()))
        failpoint("cancel.kept")

    def retry(self, owner: Owner, job_id: str, key: str | None = None) -> Job:
        """Start the next generation of a job that is over. The same `key` (idempotency key) starts one only; it belongs
        to this job, and is kept as long as the request is.

        Raises:
            Conflict: it is not over (also: another retry of it came first), or its input is another one now.
            NotFound: there is no such job, its function was deleted, or its input is gone.
        """
        self._pressure.check()
        job = self.job(owner, job_id)
        if key is not None and self._retried(job, key):
            return job
        if not job.state.terminal or self._record.get_manifest(job.function, job_id, job.generation) is None:
            raise _not_over(job_id, job.state)
        function = self.function(job.function)
        self._check_input(job)
        request = RequestRecord(
            job_id=job_id,
            function=job.function,
            generation=job.generation + 1,
            owner=job.owner,
            input=job.input,
            params=job.params,
            fingerprint=_sha256(f"retry {job_id} {job.generation + 1}".encode()),
            key=key,
            created_at=self._clock(),
        )
        stored = self._record.put_request(request)
        if key is not None and stored.key != key:
            raise _not_over(job_id, "being retried")
        return self._submit(function, stored, look_first=True, via="retry")

    def _retried(self, job: Job, key: str) -> bool:
        """Whether a retry with this key has begun this generation of the job, or one before."""
        for generation in range(job.generation, 1, -1):
            request = self._record.get_request(job.function, job.id, generation)
            if request is None:
                break  # it had its time, and so had those before
            if request.key == key:
                return True
        return False

    def _check_input(self, job: Job) -> None:
        found = self._store.head(job.input.bucket, job.input.key, _version_of(job.input))
        if found is None:
            raise NotFound(
                f"the input {job.input.bucket}/{job.input.key} of job {job.id} is gone",
                hint="Upload it again: a new job.",
                code="input_gone",
            )
        if job.input.bucket == self._record.bucket:
            return  # a payload of ours never changes
        was = (job.input.etag, job.input.size, job.input.last_modified)
        if (found.etag, found.size, found.last_modified) != was:
            raise Conflict(
                f"the input {job.input.bucket}/{job.input.key} was written again since job {job.id}",
                hint="The changed object is a job of its own; `tidemill job list` shows it.",
                code="input_changed",
            )


def _other_content(call: Call) -> Conflict:
    return Conflict(
        f"the idempotency key {call.key!r} was used for {call.function} with another content",
        hint="Use another key for another input or other parameters.",
        code="idempotency_conflict",
    )


def _not_over(job_id: str, state: str) -> Conflict:
    return Conflict(
        f"job {job_id} is {state}: only a job that is over can be retried",
        hint=f"Wait for it (tidemill job wait {job_id}), or cancel it first.",
    )


def _cancel_of(job: Job, owner: Owner, now: float) -> CancelRecord:
    return CancelRecord(
        job_id=job.id,
        function=job.function,
        revision=job.revision,
        generation=job.generation,
        by=owner.name,
        owner=job.owner,
        input=job.input,
        params=job.params,
        created_at=job.created_at,
        asked_at=now,
    )


def _version_of(source: JobInput) -> str | None:
    """The version that the caller named; None where what the key shows now is the input."""
    return source.version_id if source.pinned else None


def safe_name(name: str) -> str:
    """Give the last part of a file name, never empty or a dot name, in at most 200 bytes of UTF-8."""
    last = name.replace("\0", "").rsplit("/", 1)[-1]
    if last in ("", ".", ".."):
        return "file"
    data = last.encode("utf-8", "replace")
    if len(data) <= _NAME_BYTES:
        return data.decode()
    stem, dot, suffix = last.rpartition(".")
    tail = f"{dot}{suffix}".encode("utf-8", "replace") if stem and len(suffix) <= 16 else b""
    head = (stem if tail else last).encode("utf-8", "replace")[: _NAME_BYTES - len(tail)]
    return head.decode("utf-8", "ignore") + tail.decode()


def _digest_of(subject: Payload | Named) -> str:
    if isinstance(subject, Named):
        return _sha256(json.dumps([subject.bucket, subject.key, subject.version_id]).encode())
    subject.file.seek(0)
    return hashlib.file_digest(subject.file, "sha256").hexdigest()  # type: ignore[arg-type]


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
