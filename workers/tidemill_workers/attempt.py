"""One attempt at a job: claim -> fetch -> run -> commit -> publish.

The claim is made by the caller; everything after it happens here, in one thread, and whatever happens leads to one of
four ends: the job is finished through `tidemill.record.ending` (success, failure, cancel, superseded), given back to
the queue (retry, drain, trouble of ours), found finished already, or left to the lease when nothing answers any more.
An error that nobody foresaw counts as a failed attempt and is told with its traceback, so that it neither hides behind
an expired lease nor repeats for ever.

Order matters in two places. The input is looked at as the last thing before each try to commit a success: if it
changed, the result belongs to bytes that are gone, and the job ends as superseded. The log is stored before the commit,
so that whoever sees a finished job can read it.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import secrets
import shutil
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import structlog

from tidemill.errors import JOB_HINTS, NotFound, PreconditionFailed, ServiceUnavailable
from tidemill.failpoints import failpoint, now
from tidemill.ledger.api import Claim, Ledger
from tidemill.models import CommitOutput, Cost, FunctionRecord, Job, JobError, JobInput
from tidemill.record import Record
from tidemill.record.ending import End, finish, output_key, resume
from tidemill.store import Downloaded
from tidemill_workers.agent.fleet import Fleet, FleetClosed
from tidemill_workers.agent.leases import Lease, LeaseKeeper
from tidemill_workers.agent.outputs import OutputFile, OutputRefused, collect
from tidemill_workers.agent.runners import Outcome, Runner, Task
from tidemill_workers.agent.starting import StartFailed

RETRY_BASE_S = 0.5
RETRY_MAX_S = 60.0
START_RETRY_BASE_S = 2.0  # what keeps a runner from starting (the network, memory) takes longer to pass
COMMIT_PATIENCE_S = 60.0
COMMIT_INLINE_BYTES = 2**20  # in all: a record is one request, and many hold it in memory
DISK_ROOM_BYTES = 2**20  # a function on a disk with less would fail, and not by its own fault
_WHY_CHARS = 300
log = structlog.get_logger(__name__)


class Finder(Protocol):
    def __call__(self, name: str, version: int | None = None) -> FunctionRecord | None:
        """The deployed function, None when it was deleted. `version`: that of the ledger's functions, where known."""


class Prices(Protocol):
    def __call__(self) -> tuple[float, bool]:
        """US dollars for a second of one slot, and whether the pool has a GPU."""


@dataclass(frozen=True)
class Workshop:
    """What all attempts of an agent share."""

    agent: str
    pool: str
    ledger: Ledger
    record: Record
    fleet: Fleet[Runner]
    leases: LeaseKeeper
    find: Finder
    price: Prices
    work_dir: Path
    lease_s: float
    inline_bytes: int
    log_bytes: int
    draining: Callable[[], bool]
    now: Callable[[], float] = now


class Attempt:
    """One claimed job on its way to an end."""

    def __init__(self, shop: Workshop, claim: Claim) -> None:
        self._shop = shop
        self._claim = claim
        self._job: Job = claim.job
        self._runner: Runner | None = None
        self._lease: Lease | None = None
        self._log = _LogKeeper(shop.log_bytes)
        self._started_at = shop.now()
        self._why = ""  # it was given back
        self._inline_room = COMMIT_INLINE_BYTES

    def work(self) -> None:
        """Bring the job to an end, or give it back. Never raises for what functions or servers do."""
        token = self._claim.token
        with structlog.contextvars.bound_contextvars(
            job_id=token.job_id, function=self._job.function, attempt=token.attempt
        ):
            began = time.monotonic()
            with self._shop.leases.hold(token, self._interrupt) as lease:
                self._lease = lease
                try:
                    said = self._work(lease)
                except ServiceUnavailable as error:
                    said = self._give_back(0.5, count=False, why=f"no answer: {error}")
                except FleetClosed:
                    said = self._after_closed(lease)
                except OSError as error:  # a full disk, too many open files: this host's trouble, not the job's
                    said = self._give_back(5.0, count=False, why=f"trouble on {self._shop.agent}: {error}")
                except Exception as error:  # noqa: BLE001 - the boundary of one unit of work; it logs
                    said = self._broke(error)
            why = {"why": self._why} if self._why else {}
            log.info("attempt.ended", outcome=said, seconds=round(time.monotonic() - began, 3), **why)

    def _work(self, lease: Lease) -> str:
        shop, claim = self._shop, self._claim
        failpoint("attempt.claimed")
        function = shop.find(self._job.function, claim.version)
        if claim.look_first and (manifest := resume(shop.ledger, shop.record, claim, shop.lease_s)) is not None:
            return f"found {manifest.state}"
        if claim.cancel:
            return self._end(function, End("cancelled", JobError(code="cancelled", message="cancelled before it ran")))
        if function is None:
            gone = JobError(
                code="function_deleted",
                message=f"the function {self._job.function} was deleted while this job waited",
                hint="Deploy it again, then `tidemill job retry ID`.",
            )
            return self._end(None, End("cancelled", gone))
        # Local names are ours: a key never becomes a path.
        name = f"job-{claim.token.job_id[:12]}-{secrets.token_hex(4)}"
        file, outputs = shop.work_dir / f"{name}-input", shop.work_dir / f"{name}-outputs"
        try:
            return self._run(function, file, outputs, lease)
        finally:
            file.unlink(missing_ok=True)
            shutil.rmtree(outputs, ignore_errors=True)

    def _run(self, function: FunctionRecord, file: Path, outputs: Path, lease: Lease) -> str:
        shop, source = self._shop, self._job.input
        disk = shutil.disk_usage(shop.work_dir)
        if disk.free < DISK_ROOM_BYTES:
            raise OSError(errno.ENOSPC, "the disk is full", str(shop.work_dir))
        if source.size > disk.total:
            fault = _too_large(source, shop.agent, disk.total)
            if self._claim.token.attempt < self._claim.max_attempts:  # another agent may have a larger one
                return self._give_back(_backoff_s(self._claim.token.attempt), count=True, error=fault)
            return self._end(function, End("failed", fault))
        try:
            got = shop.record.store.download(
                source.bucket, source.key, file, etag=source.etag or None, version_id=source.version_id
            )
        except NotFound:
            gone = JobError(
                code="input_gone",
                message=f"{source.bucket}/{source.key} was deleted before the job ran",
                hint="Upload it again: that is a new job.",
            )
            return self._end(function, End("failed", gone))
        except PreconditionFailed:
            return self._end(function, _superseded(self._job))
        failpoint("attempt.fetched")
        task = _task(self._job, self._claim, function, file, outputs, got)
        try:
            with shop.fleet.lend(function, give_up=lambda: lease.over or shop.draining()) as runner:
                self._runner = runner
                if lease.over:
                    raise FleetClosed
                self._started_at = shop.now()
                outcome = runner.run(task, on_log=self._on_log(lease), on_progress=self._on_progress(lease))
                self._runner = None
            failpoint("attempt.ran")
        except StartFailed as error:
            return self._not_started(function, error)
        if lease.lost:
            return "lease lost"  # somebody else has the job; only a commit record could make this one count
        return self._judge(function, outcome, lease)

    def _not_started(self, function: FunctionRecord, error: StartFailed) -> str:
        """The function's fault, not the job's. A permanent one goes back uncounted, and soon: placement ends all
        waiting jobs of the revision after the third, with this traceback. One that may pass is an attempt."""
        attempt = self._claim.token.attempt
        if error.permanent:
            return self._give_back(RETRY_BASE_S, count=False, error=error.fault)
        if attempt >= self._claim.max_attempts:
            return self._end(function, End("failed", error.fault))
        pause_s = min(RETRY_MAX_S, START_RETRY_BASE_S * 4.0 ** (attempt - 1))
        return self._give_back(pause_s, count=True, error=error.fault)

    def _judge(self, function: FunctionRecord, outcome: Outcome, lease: Lease) -> str:
        """Turn what the runner said into an end of the job, or another try."""
        price, gpu = self._shop.price()
        cost = Cost(usd=price * outcome.seconds, gpu_seconds=outcome.seconds if gpu else 0.0)
        if outcome.kind == "succeeded":
            return self._succeed(function, outcome, cost)
        if outcome.kind == "cancelled":
            if self._shop.draining() and not lease.cancelled:
                return self._give_back(0.0, count=False, why="the agent was stopped")
            stopped = JobError(code="cancelled", message="cancelled while it ran", log_tail=self._log.tail())
            return self._end(function, End("cancelled", stopped, cost=cost, run_s=outcome.seconds))
        fault = outcome.error or JobError(code=outcome.kind, message="the function failed and said no more")
        last = self._claim.token.attempt >= self._claim.max_attempts
        if outcome.kind in ("permanent", "timeout") or last:
            return self._end(function, End("failed", fault, cost=cost, run_s=outcome.seconds))
        delay_s = outcome.delay_s if outcome.delay_s is not None else _backoff_s(self._claim.token.attempt)
        return self._give_back(delay_s, count=True, error=fault)

    def _succeed(self, function: FunctionRecord, outcome: Outcome, cost: Cost) -> str:
        try:
            found = collect(outcome.outputs_dir)
            for skipped in found.skipped:
                self._log.add("agent", f"output {skipped.name!r} is not published: {skipped.reason}")
            outputs = tuple(self._pack(function, file) for file in found.files)
            failpoint("attempt.packed")
        except (OutputRefused, _Unplaceable) as error:
            fault = JobError(
                code="output_refused", message=str(error), hint="Write fewer files, or name them otherwise."
            )
            return self._end(function, End("failed", fault, cost=cost, run_s=outcome.seconds))
        end = End("succeeded", outputs=outputs, cost=cost, run_s=outcome.seconds, started_at=self._started_at)
        return self._end(function, end)

    def _pack(self, function: FunctionRecord, file: OutputFile) -> CommitOutput:
        """Put a small output into the commit record itself while it has room, others under the attempt's prefix."""
        shop = self._shop
        try:
            bucket, key = output_key(function.spec, self._job, file.name, platform_bucket=shop.record.bucket)
        except ValueError as error:
            raise _Unplaceable(f"{file.name!r}: {error}") from error
        room = min(shop.inline_bytes, self._inline_room)
        with file.open() as source:
            # It may have grown since it was found.
            if file.size <= room and len(body := source.read(room + 1)) <= room:
                self._inline_room -= len(body)
                inline = base64.b64encode(body).decode("ascii")
                digest, size, attempt_key = hashlib.sha256(body).hexdigest(), len(body), None
            else:
                source.seek(0)
                digest, size = _digest(source)
                source.seek(0)
                inline, attempt_key = None, shop.record.attempt_prefix(self._claim.token) + digest
                shop.record.store.put(shop.record.bucket, attempt_key, source, content_type=file.content_type)
        return CommitOutput(
            name=file.name,
            bucket=bucket,
            key=key,
            size=size,
            sha256=digest,
            content_type=file.content_type,
            inline=inline,
            attempt_key=attempt_key,
        )

    def _input_changed(self) -> bool:
        source = self._job.input
        if source.bucket == self._shop.record.bucket:
            return False  # a payload of ours never changes
        # By its version only where the caller named that one: it stays as it was when the object is overwritten.
        now = self._shop.record.store.head(source.bucket, source.key, source.version_id if source.pinned else None)
        if now is None:
            return True
        return (now.etag, now.size, now.last_modified) != (source.etag, source.size, source.last_modified)

    def _end(self, function: FunctionRecord | None, end: End) -> str:
        """Commit and publish. The store may be away for a while: the result in hand is worth waiting for."""
        shop = self._shop
        deadline = time.monotonic() + COMMIT_PATIENCE_S
        pause_s = 0.2
        while True:
            try:
                self._store_log()
                failpoint("attempt.log_stored")
                self._say_rest()
                if end.outcome == "succeeded":
                    if self._input_changed():
                        end = _superseded(self._job, end.cost)
                    failpoint("attempt.input_looked_at")
                manifest = finish(shop.ledger, shop.record, self._claim, function, end, shop.lease_s, shop.now)
                return f"{manifest.state}" if manifest else "stale"
            except ServiceUnavailable:
                if time.monotonic() > deadline or shop.draining():
                    raise
                time.sleep(pause_s)
                pause_s = min(5.0, pause_s * 2)

    def _store_log(self) -> None:
        if text := self._log.text():
            token = self._claim.token
            self._shop.record.put_log(self._job.function, token.job_id, token.generation, text)

    def _say_rest(self) -> None:
        """Whoever follows the live log sees its last lines: after the end the ledger takes no more."""
        if (lease := self._lease) is not None:
            self._shop.leases.flush(lease)

    def _after_closed(self, lease: Lease) -> str:
        if lease.lost:
            return "lease lost"
        if lease.cancelled:
            function = self._shop.find(self._job.function)
            return self._end(function, End("cancelled", JobError(code="cancelled", message="cancelled before it ran")))
        return self._give_back(0.0, count=False, why="the agent was stopped")

    def _broke(self, error: Exception) -> str:
        """A fault of Tidemill's own: told like one of the function's, and tried as often."""
        log.exception("attempt.broke")
        fault = JobError(
            code="internal",
            message=f"Tidemill itself failed on {self._shop.agent}: {type(error).__name__}: {error}"[:1000],
            traceback="".join(traceback.format_exception(error)),
            log_tail=self._log.tail(),
            hint="Report this with the agent's log; `tidemill job retry ID` tries again.",
        )
        if self._claim.token.attempt < self._claim.max_attempts:
            return self._give_back(_backoff_s(self._claim.token.attempt), count=True, error=fault)
        try:
            return self._end(self._shop.find(self._job.function), End("failed", fault))
        except ServiceUnavailable as gone:
            return self._give_back(0.5, count=False, why=f"no answer: {gone}")

    def _give_back(self, delay_s: float, *, count: bool, why: str = "", error: JobError | None = None) -> str:
        fault = f"{error.code}: {error.message}" if error is not None else ""
        self._why = " ".join(": ".join(filter(None, (why, fault))).split())[:_WHY_CHARS]
        try:
            self._store_log()
        except ServiceUnavailable as fault:  # a store that is away or full must not cost the job an attempt as well
            log.warning("attempt.log_not_stored", error=str(fault))
        try:
            self._say_rest()
            failpoint("attempt.giving_back")
            self._shop.ledger.give_back(self._claim.token, delay_s=delay_s, count=count, why=why, error=error)
        except ServiceUnavailable as fault:
            log.warning("attempt.left_to_lease", error=str(fault))
            return "left to the lease"
        return "given back"

    def _interrupt(self) -> None:
        """From the leases' thread: the job was cancelled or is somebody else's."""
        if (runner := self._runner) is not None:
            runner.cancel()

    def _on_log(self, lease: Lease) -> Callable[[str, str], None]:
        def write(stream: str, text: str) -> None:
            self._log.add(stream, text)
            lease.say(stream, text)

        return write

    @staticmethod
    def _on_progress(lease: Lease) -> Callable[[float, float | None, str | None], None]:
        def note(done: float, total: float | None, unit: str | None) -> None:
            lease.progress = (done, total, unit)

        return note


class _Unplaceable(Exception):
    """An output whose name cannot become a key."""


class _LogKeeper:
    """The log of one attempt: its beginning, and its end when the middle is too long."""

    def __init__(self, limit_bytes: int) -> None:
        self._head_room = limit_bytes // 2
        self._tail_room = limit_bytes // 2
        self._head: list[bytes] = []
        self._tail: list[bytes] = []
        self._tail_bytes = 0
        self._dropped = 0

    def add(self, stream: str, text: str) -> None:
        line = f"{stream}: {text}\n".encode("utf-8", "replace")
        if not self._tail and len(line) <= self._head_room:
            self._head_room -= len(line)
            self._head.append(line)
            return
        self._tail.append(line)
        self._tail_bytes += len(line)
        while self._tail_bytes > self._tail_room and len(self._tail) > 1:
            gone = self._tail.pop(0)
            self._tail_bytes -= len(gone)
            self._dropped += 1

    def text(self) -> bytes:
        note = f"[{self._dropped} lines dropped here]\n".encode() if self._dropped else b""
        return b"".join(self._head) + note + b"".join(self._tail)

    def tail(self, lines: int = 40) -> str:
        return b"".join((self._head + self._tail)[-lines:]).decode("utf-8", "replace")


def _name(job: Job) -> str:
    return job.input.name or job.input.key.rsplit("/", 1)[-1]


def _task(job: Job, claim: Claim, function: FunctionRecord, file: Path, outputs: Path, got: Downloaded) -> Task:
    """What the runner is told of the job."""
    params = {key: schema["default"] for key, schema in function.spec.params.items() if "default" in schema}
    return Task(
        job={
            "id": job.id,
            "function": function.name,
            "revision": function.revision,
            "generation": claim.token.generation,
            "attempt": claim.token.attempt,
            "owner": job.owner,
        },
        file=file,
        name=_name(job),
        bucket=job.input.bucket,
        key=job.input.key,
        size=job.input.size,
        content_type=got.content_type or job.input.content_type or "application/octet-stream",
        metadata=got.metadata,
        params={**params, **job.params},
        outputs=outputs,
        timeout_s=function.spec.limits.timeout,
    )


def _too_large(source: JobInput, agent: str, disk_bytes: int) -> JobError:
    return JobError(
        code="input_too_large",
        message=f"{source.bucket}/{source.key} has {source.size:,} bytes, more than the whole disk of the work folder"
        f" on {agent} ({disk_bytes:,} bytes)",
        hint=JOB_HINTS["input_too_large"],
    )


def _superseded(job: Job, cost: Cost | None = None) -> End:
    fault = JobError(
        code="superseded",
        message=f"{job.input.bucket}/{job.input.key} was changed or deleted before the result was committed",
        hint="New content under this key is a job of its own.",
    )
    return End("cancelled", fault, cost=cost or Cost())


def _backoff_s(attempt: int) -> float:
    return float(min(RETRY_MAX_S, RETRY_BASE_S * 2 ** max(0, attempt - 1)))


def _digest(source: BinaryIO) -> tuple[str, int]:
    hasher, size = hashlib.sha256(), 0
    while chunk := source.read(1024 * 1024):
        hasher.update(chunk)
        size += len(chunk)
    return hasher.hexdigest(), size
