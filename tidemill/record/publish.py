"""Publication: from a commit record to objects under the users' keys.

Any process may run it, several at once, and each may die at any instruction; the next one goes on. It holds because
every step is decided by what the store shows, never by who asks:

- Each output carries who made it: job, generation, function, a digest of the input's bucket and key, and an order
  (the input's last-modified, then when the attempt was claimed; the claim alone for a version that its caller named).
  So whoever finds an object under the wanted key knows whether it is *the same* (done), *older* (an earlier generation,
  or an earlier content or call of the same input: replaced by If-Match), *newer* (leave it: this publication comes too
  late), or *foreign* (`on_conflict` decides).
- Last-modified has whole seconds. Within one, claims order the contents: an attempt that was claimed after the content
  had changed finds no input under its ETag. Claims have the ledger's clock; agents' clocks may differ.
- Small outputs are created by If-None-Match. Large ones are copied by the store after a HEAD; S3 has no conditional
  copy, so a foreign object that appears in between is overwritten (a window of milliseconds, stated in the docs).
- With `on_conflict: fail` and several outputs all keys are looked at before the first is written.
- The manifest is written last, by If-None-Match (`Record.publish`).

What can never succeed (a conflict, a bucket that is gone, a key that the store refuses) ends in a manifest that says
failed; what may pass (`ServiceUnavailable`) is raised, and somebody tries again.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
from collections.abc import Iterator
from enum import Enum
from typing import TypeVar

from tidemill.errors import InvalidSpec, NotAllowed, NotFound, PreconditionFailed, StoreUnavailable
from tidemill.failpoints import failpoint
from tidemill.models import CommitOutput, CommitRecord, JobError, Manifest, OutputObject
from tidemill.models.record import Final
from tidemill.record.outputs import numbered
from tidemill.store.api import ObjectInfo, Store

JOB = "tidemill-job"
GENERATION = "tidemill-generation"
HOP = "tidemill-hop"
FUNCTION = "tidemill-function"
INPUT = "tidemill-input"
ORDER = "tidemill-order"
OUTPUT = "tidemill-output"
_TRIES = 20
_MAX_NUMBER = 1000


class Seen(Enum):
    """What an object under a wanted key is to a publication."""

    same = "same"
    older = "older"
    newer = "newer"
    foreign = "foreign"


class _Stop(Exception):
    """The publication cannot succeed, ever: how its manifest ends instead."""

    def __init__(self, state: Final, error: JobError) -> None:
        super().__init__(error.message)
        self.state = state
        self.error = error


class Publication:
    """One try to publish one commit record. `previous` is the manifest of the generation before, if any."""

    def __init__(self, store: Store, platform_bucket: str, commit: CommitRecord, previous: Manifest | None) -> None:
        self._store = store
        self._platform_bucket = platform_bucket
        self._commit = commit
        self._previous = previous
        source = commit.input
        claimed_at = commit.claimed_at if commit.claimed_at is not None else commit.committed_at
        # Who names an older version wants its result now, though there is one of a newer content.
        since = max(source.last_modified, int(claimed_at)) if source.pinned else source.last_modified
        self._metadata = {
            JOB: commit.job_id,
            GENERATION: str(commit.generation),
            HOP: str(source.hop + 1),
            FUNCTION: commit.function,
            INPUT: _digest(source.bucket, source.key),
            ORDER: f"{since:012d}-{max(0, int(claimed_at * 1000)):015d}",
        }

    def run(self) -> Manifest:
        """Publish what is to be published, and give the manifest that is to be written."""
        commit = self._commit
        if commit.outcome != "succeeded":
            return self._manifest(commit.outcome, (), commit.error)
        done: list[OutputObject] = []
        try:
            self._look_around()
            failpoint("publish.looked_around")
            for output in commit.outputs:
                done.append(self._publish(output))
                failpoint("publish.output_written")
        except _Stop as stop:
            return self._manifest(stop.state, (), stop.error, left=tuple(self._lying()))
        return self._manifest("succeeded", tuple(done), None)

    # -- one output ----------------------------------------------------------------------------------------------
    def _look_around(self) -> None:
        """Find a conflict before anything is written. A single output finds it by its own conditional put."""
        if self._commit.on_conflict != "fail" or len(self._commit.outputs) < 2:
            return
        for output in self._commit.outputs:
            with _refusals(output):
                there = self._store.head(output.bucket, output.key)
            if there is not None:
                self._judge(output, there)

    def _lying(self) -> Iterator[OutputObject]:
        """What lies there of this commit when the publication stops: a finisher that died may have written more."""
        for output in self._commit.outputs:
            with contextlib.suppress(_Stop), _refusals(output):
                key, there = self._target(output)
                if there is not None and self._seen(output, there) is Seen.same:
                    yield output.published(key)

    def _publish(self, output: CommitOutput) -> OutputObject:
        with _refusals(output):
            return output.published(self._place(output))

    def _place(self, output: CommitOutput) -> str:
        """Write the output, or find it written; gives its key."""
        # A small output under a plain rule is nearly always new: its conditional put looks by itself.
        looked = output.inline is None or self._commit.on_conflict == "suffix"
        for _ in range(_TRIES):
            key, there = self._target(output) if looked else (output.key, None)
            looked = True
            if there is not None and self._judge(output, there) is Seen.same:
                return key
            try:
                self._write(output, key, there)
            except PreconditionFailed:
                continue  # somebody wrote in between: look again
            except StoreUnavailable:
                found = self._store.head(output.bucket, key)  # perhaps it is written, and only the answer was lost
                if found is None or self._seen(output, found) is not Seen.same:
                    raise
            return key
        raise StoreUnavailable(f"{output.bucket}/{output.key[:100]} changes all the time")

    def _target(self, output: CommitOutput) -> tuple[str, ObjectInfo | None]:
        """The key to write to, and what lies there.

        Under `suffix` that is the first key that is ours, else the first free one. The search goes on to a second free
        one: if the user removes the object that made us step aside, our own is still found behind the gap.
        """
        if self._commit.on_conflict != "suffix":
            return output.key, self._store.head(output.bucket, output.key)
        free = None
        for number in range(_MAX_NUMBER):
            key = numbered(output.key, number)
            there = self._store.head(output.bucket, key)
            if there is not None and self._seen(output, there) is not Seen.foreign:
                return key, there
            if there is None and free is not None:
                return free, None
            if there is None:
                free = key
        raise _Stop("failed", _conflict(output, f"and {_MAX_NUMBER} numbered names beside it are taken"))

    def _write(self, output: CommitOutput, key: str, there: ObjectInfo | None) -> None:
        metadata = {**self._metadata, OUTPUT: _digest(output.bucket, output.key)}
        if output.inline is not None:
            self._put(output, key, base64.b64decode(output.inline), there, metadata)
        elif output.attempt_key is not None:
            self._copy(output, output.attempt_key, key, metadata)
        else:
            raise _Stop("failed", _lost(output))

    def _put(
        self, output: CommitOutput, key: str, body: bytes, there: ObjectInfo | None, metadata: dict[str, str]
    ) -> None:
        try:
            self._store.put(
                output.bucket,
                key,
                body,
                content_type=output.content_type,
                metadata=metadata,
                if_none_match=there is None,
                if_match=there.etag if there is not None else None,
            )
        except NotFound as error:
            # Under If-Match a 404 may also mean that the object was deleted just now.
            if there is None or not self._store.bucket_exists(output.bucket):
                raise
            raise PreconditionFailed(f"{output.bucket}/{key[:100]} is gone") from error

    def _copy(self, output: CommitOutput, source: str, key: str, metadata: dict[str, str]) -> None:
        try:
            self._store.copy(
                self._platform_bucket, source, output.bucket, key, content_type=output.content_type, metadata=metadata
            )
        except NotFound as error:
            if self._store.head(self._platform_bucket, source) is None:
                raise _Stop("failed", _lost(output)) from error
            raise

    # -- what is there -------------------------------------------------------------------------------------------
    def _judge(self, output: CommitOutput, there: ObjectInfo) -> Seen:
        """What the object is to us, when the publication may go on; raises `_Stop` when it may not."""
        seen = self._seen(output, there)
        if seen is Seen.newer:
            error = JobError(
                code="superseded",
                message=f"{output.bucket}/{output.key} holds the result of a newer content or of a later call",
                hint="Nothing is to be done: the newer job has its own results.",
            )
            raise _Stop("cancelled", error)
        if seen is Seen.foreign and self._commit.on_conflict == "fail":
            raise _Stop("failed", _conflict(output, "and was not written by this function for this input"))
        return seen

    def _seen(self, output: CommitOutput, there: ObjectInfo) -> Seen:
        commit, metadata = self._commit, there.metadata
        suffixed = commit.on_conflict == "suffix" and metadata.get(OUTPUT) != _digest(output.bucket, output.key)
        if suffixed:  # another output of ours that stepped aside to this key
            return Seen.foreign
        if metadata.get(JOB) == commit.job_id and (generation := metadata.get(GENERATION, "")).isdecimal():
            return _compare(int(generation), commit.generation)
        if metadata.get(FUNCTION) == commit.function and metadata.get(INPUT) == self._metadata[INPUT]:
            theirs = (metadata.get(ORDER, ""), metadata.get(JOB, ""))
            return _compare(theirs, (self._metadata[ORDER], commit.job_id))
        return Seen.foreign

    # -- the manifest --------------------------------------------------------------------------------------------
    def _manifest(
        self,
        state: Final,
        outputs: tuple[OutputObject, ...],
        error: JobError | None,
        left: tuple[OutputObject, ...] = (),
    ) -> Manifest:
        commit, previous = self._commit, self._previous
        older = (*previous.left, *previous.outputs, *left) if previous is not None else left
        current = {(output.bucket, output.key) for output in outputs}
        remaining = {(item.bucket, item.key): item for item in older if (item.bucket, item.key) not in current}
        return Manifest(
            job_id=commit.job_id,
            function=commit.function,
            revision=commit.revision,
            generation=commit.generation,
            state=state,
            owner=commit.owner,
            pool=commit.pool,
            agent=commit.agent,
            attempt=commit.attempt,
            input=commit.input,
            params=commit.params,
            outputs=outputs,
            left=tuple(remaining.values()),
            error=error,
            placement=commit.placement,
            cost=commit.cost,
            created_at=commit.created_at,
            started_at=commit.started_at,
            finished_at=commit.committed_at,
            run_s=commit.run_s,
            history=commit.history,
        )


@contextlib.contextmanager
def _refusals(output: CommitOutput) -> Iterator[None]:
    """A store that says no to this key will say no again: the job fails and tells why."""
    try:
        yield
    except (NotFound, NotAllowed, InvalidSpec) as error:
        refused = JobError(
            code="output_refused",
            message=f"the store does not take {output.bucket}/{output.key}: {error}",
            hint=f"Check that the bucket {output.bucket} exists and may be written, then `tidemill job retry ID`.",
        )
        raise _Stop("failed", refused) from error


def _conflict(output: CommitOutput, why: str) -> JobError:
    return JobError(
        code="output_conflict",
        message=f"{output.bucket}/{output.key} exists {why}",
        hint="Move that object away, or set output.on_conflict to overwrite or suffix, then `tidemill job retry ID`.",
    )


def _lost(output: CommitOutput) -> JobError:
    return JobError(
        code="output_lost",
        message=f"the content of {output.name} is not in the platform bucket any more",
        hint="`tidemill job retry ID` runs the job again; TIDEMILL_RETENTION__ATTEMPTS says how long content is kept.",
    )


C = TypeVar("C", int, tuple[str, str])


def _compare(there: C, ours: C) -> Seen:
    if there == ours:
        return Seen.same
    return Seen.older if there < ours else Seen.newer


def _digest(bucket: str, key: str) -> str:
    return hashlib.sha256(f"{len(bucket)}:{bucket}{key}".encode("utf-8", "surrogatepass")).hexdigest()
