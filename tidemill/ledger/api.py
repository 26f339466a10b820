"""What the ledger promises: the live state of every job, agent, pool and function, as one interface.

Two implementations pass the same contract tests: `tidemill.ledger.redis_ledger.RedisLedger` (Lua scripts on Redis' own
clock) and `tidemill.testing.MemoryLedger` (for tests, and for users' tests).

    queued ──release──> released ──claim──> running ──commit──> committed ──published──> succeeded|failed|cancelled
      ^  ^                 │                  │                     │
      │  └──agent gone─────┘                  │                     └─ sweep hands an expired one to a finisher
      └──give_back, lease expired (sweep)─────┘

Rules that hold for every call:
- Terminal states never change; only `submit` with a higher generation starts a new life of the same id.
- A call that carries a token changes nothing unless epoch, attempt and nonce are the current ones (a *stale* reply).
- A repeated call is harmless and gives the same reply, or one that says what is there already.
- Stale fences, doubled calls and missing jobs are replies. Exceptions mean that Redis itself did not answer
  (`LedgerUnavailable`), or that it holds no epoch yet (`LedgerUnavailable` with code `no_epoch`).
- `fence` is what `acquire("placement", ...)` gave the leader who calls. When another leader has come since, the call
  changes nothing and says so (false, None, nothing found). Callers that are no leader leave it out.
- Time is the server's. All times in replies are seconds since 1970 (UTC).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from tidemill.models import (
    FunctionRecord,
    Job,
    JobError,
    JobInput,
    JobState,
    Manifest,
    OutputObject,
    Placement,
    PoolSpec,
)

START_FAILURES_S = 600.0  # so long after the last one a revision's failed starts are forgotten


@dataclass(frozen=True, slots=True)
class Token:
    """The fencing token of an attempt. Only its holder may move the job on."""

    job_id: str
    generation: int
    epoch: int
    attempt: int
    nonce: str


@dataclass(frozen=True, slots=True)
class NewJob:
    """What `submit` needs to know. `look_first` marks a job that the reconciler found: its claim looks for a commit."""

    id: str
    function: str
    input: JobInput
    revision: str
    params: Mapping[str, Any] = field(default_factory=dict)
    owner: str = "default"
    generation: int = 1
    max_attempts: int = 3
    look_first: bool = False


@dataclass(frozen=True, slots=True)
class Submitted:
    """The answer of `submit`.

    `created` is false when this identity is here already (`state` says how far it is), or finished long ago
    (`settled`; then `state` is None). `agent` is set when a grant sent the job straight to an agent (also when this is
    found out by a repeated call). `moved`: functions have changed since the given version, and nothing was done.
    """

    job_id: str
    created: bool
    state: JobState | None
    generation: int
    settled: bool = False
    agent: str | None = None
    moved: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """A job in the hands of somebody who will end it: its token, and whether to look for a commit record first.

    `version` is that of functions and pools at the claim; None where no agent claimed it.
    """

    token: Token
    job: Job
    max_attempts: int
    look_first: bool
    cancel: bool = False
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Renewal:
    """`held` is false when the token is stale: stop, and publish nothing. `cancel` asks to end the function."""

    held: bool
    cancel: bool = False


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A waiting job as placement sees it. Times in seconds since 1970, sizes in bytes."""

    id: str
    function: str
    owner: str
    created_at: float
    size: int
    params: Mapping[str, Any]
    attempt: int = 0
    last_agent: str | None = None


@dataclass(frozen=True, slots=True)
class Backlog:
    """Waiting work of one function: all that may run now are counted, the oldest are given as jobs."""

    function: str
    ready: int
    delayed: int
    next_delayed_at: float | None
    jobs: tuple[QueuedJob, ...]


@dataclass(frozen=True, slots=True)
class RunnerReport:
    """Runners of one function revision on an agent. `idle_s` is how long all of them have been idle (0 = busy)."""

    function: str
    revision: str
    slots: int
    busy: int
    idle_s: float
    state: Literal["starting", "ready", "failed"] = "ready"


@dataclass(frozen=True, slots=True)
class AgentReport:
    """What an agent says of itself with each heartbeat, and what the ledger knows of it.

    `released` and `running` are the ledger's own counts, filled in by `agents()`.
    """

    name: str
    pool: str
    slots: int
    host: str = ""
    pid: int = 0
    state: Literal["starting", "ready", "draining"] = "ready"
    runners: tuple[RunnerReport, ...] = ()
    gpu: Mapping[str, Any] | None = None
    started_at: float = 0.0
    seen_at: float = 0.0
    idle_s: float = 0.0
    released: int = 0
    running: int = 0


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """`wanted` maps `function@revision` to slots; `drain`: take no more work and end when idle.

    `told` is false when nobody has set the wanted runners of this agent yet (it is new, or the ledger lost them): an
    agent then keeps the runners that it has.
    """

    wanted: Mapping[str, int]
    drain: bool = False
    told: bool = True


@dataclass(frozen=True, slots=True)
class Swept:
    """What one sweep found and did. Claims in it belong to the caller now, who ends them (lease as given).

    An `exhausted` claim with `cancel` is to be ended as cancelled: somebody asked for it, and nobody is left to do it.
    `more` says that a limit was reached: sweep again at once.
    """

    requeued: tuple[str, ...] = ()
    exhausted: tuple[Claim, ...] = ()
    unpublished: tuple[Claim, ...] = ()
    ring: tuple[str, ...] = ()
    dead_agents: tuple[str, ...] = ()
    more: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """The facts of a commit record that the ledger mirrors."""

    state: Literal["succeeded", "failed", "cancelled"]
    error: JobError | None = None
    outputs: tuple[OutputObject, ...] = ()
    usd: float = 0.0
    gpu_seconds: float = 0.0
    run_s: float = 0.0
    revision: str | None = None

    @classmethod
    def of(cls, manifest: Manifest) -> Ended:
        """The end that a manifest tells of."""
        return cls(
            state=manifest.state,
            error=manifest.error,
            outputs=manifest.outputs,
            usd=manifest.cost.usd,
            gpu_seconds=manifest.cost.gpu_seconds,
            run_s=manifest.run_s,
            revision=manifest.revision,
        )


@dataclass(frozen=True, slots=True)
class PoolState:
    spec: PoolSpec
    draining: bool = False


@dataclass(frozen=True, slots=True)
class StartFailure:
    """A revision whose runner could not start. `permanent` counts failures since the last good start; all are forgotten
    with a deploy or delete of the function, in a new epoch, and `START_FAILURES_S` after the last one."""

    function: str
    revision: str
    permanent: int
    error: JobError


@dataclass(frozen=True, slots=True)
class Transition:
    """One line of the stream of transitions. `position` orders them and can be resumed from.

    A job that is tried again is `queued` once more, with `attempt` > 0. A `running` line without agent is a job that
    somebody took out of the queue to end it without a run.
    """

    position: str
    job_id: str
    function: str
    state: JobState
    at: float
    attempt: int = 0
    generation: int = 1
    agent: str | None = None
    summary: str = ""  # bucket/key, shortened
    error: str = ""
    created: bool = False  # the first line of this generation
    run_s: float = 0.0


@dataclass(frozen=True, slots=True)
class JobPage:
    jobs: tuple[Job, ...]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class LogLine:
    position: str
    at: float
    stream: str  # stdout, stderr, log, agent
    text: str


@dataclass(frozen=True, slots=True)
class Memory:
    """Redis' memory in bytes; `limit` 0 means none."""

    used: int
    limit: int

    @property
    def full(self) -> bool:
        """Above 80 % no new job is accepted, so that agents can always report."""
        return self.limit > 0 and self.used > 0.8 * self.limit


class Ledger(Protocol):
    """The live state. Every method is one round trip unless it says otherwise, and may be called from any thread."""

    # -- epoch and leader leases ---------------------------------------------------------------------------------
    def epoch(self) -> tuple[int, int] | None:
        """Give (epoch, sequence), or None when Redis has none: then every job call raises `no_epoch`."""

    def begin_epoch(self, epoch: int, sequence: int) -> bool:
        """Set a new epoch if it is higher than the one here. Leases of older epochs are void: their running jobs are
        found by the sweep at once, and attempts count anew. Gives whether it was set."""

    def advance(self, epoch: int, sequence: int, *, fence: int | None = None) -> bool:
        """Raise the sequence of this epoch; false when the epoch is another one, and for an old fence."""

    def acquire(self, name: str, holder: str, ttl_s: float) -> int | None:
        """Take or renew the lease `name` for `holder`. Gives its fence (grows with each change of holder), or None."""

    def resign(self, name: str, holder: str) -> None:
        """Give the lease up if `holder` has it."""

    # -- functions and pools (mirrors of the platform bucket) ----------------------------------------------------
    def put_function(self, record: FunctionRecord, *, fence: int | None = None) -> bool:
        """Mirror a function; false only for an old fence."""

    def functions(self) -> dict[str, FunctionRecord]: ...
    def function(self, name: str) -> FunctionRecord | None: ...
    def remove_function(self, name: str, *, fence: int | None = None) -> None: ...
    def put_pool(self, spec: PoolSpec, *, draining: bool | None = None, fence: int | None = None) -> bool:
        """Mirror a pool; false only for an old fence. Without `draining` a known pool keeps what it was told, and a new
        one takes work."""

    def pools(self) -> dict[str, PoolState]: ...
    def remove_pool(self, name: str, *, fence: int | None = None) -> bool:
        """Remove a pool; its agents drain from then on. False when there is none."""

    def drain_pool(self, name: str, draining: bool) -> bool:
        """Let a pool take no more work, or take some again. Its agents hear of it with their next heartbeat, and
        their released jobs are queued again then. False when there is no such pool."""

    def version(self) -> int:
        """A number that grows with each change of a function or pool, so that readers may cache."""

    # -- the way of a job ----------------------------------------------------------------------------------------
    def submit(self, job: NewJob, *, version: int | None = None, bell: str = "") -> Submitted:
        """Accept a job, once for each id and generation; a higher generation only when the older one is terminal or
        forgotten. Uses a grant of its function when there is one and nothing of it waits. A retried job keeps its
        `created_at`, and so its place in listings; `QueuedJob.created_at` is the time of this submit. With `version`
        it is accepted only while that is the version of functions and pools (`Submitted.moved`). `bell` is the message
        (`Doorbell.message`) that rings an agent; with it the grant and the doorbell are one step.

        Raises:
            LedgerUnavailable: with code `ledger_full` at the server's memory limit.
        """

    def release(self, job_id: str, agent: str, placement: Placement, *, fence: int | None = None) -> bool:
        """Bind a queued job to an agent. False when it is not queued any more, was cancelled, or the agent is gone or
        draining. Afterwards the caller rings the agent's doorbell."""

    def note_placement(self, job_id: str, placement: Placement, *, fence: int | None = None) -> bool:
        """Store why a queued job still waits (all candidates and reasons). False when it is not queued."""

    def claim(self, agent: str, limit: int, lease_s: float) -> list[Claim]:
        """Give the agent up to `limit` of its released jobs, oldest first. Attempts are counted here. A claim with
        attempt > 1, of a job marked look_first, in another epoch than its submit, or submitted while the epoch's
        sequence was 0 (the rebuild was not complete), has `look_first`."""

    def seize(self, job_id: str, by: str, lease_s: float, *, fence: int | None = None) -> Claim | None:
        """Take a queued or released job out of the queue to end it without a run (cancel, no capacity, deleted
        function). Counts no attempt (`token.attempt` stays). The state becomes running, without an agent; when the
        lease ends first, the sweep queues it again. None when it is not queued or released."""

    def renew(self, tokens: Sequence[Token], lease_s: float) -> list[Renewal]: ...

    def progress(self, token: Token, done: float, total: float | None, unit: str | None) -> bool: ...

    def commit(self, token: Token, ended: Ended, lease_s: float) -> bool:
        """Mirror the commit record: running -> committed. The lease then covers the publication. True also when the
        job is committed by this token already."""

    def published(self, token: Token, ended: Ended) -> bool:
        """The manifest is written: committed (or running) -> terminal; the identity joins the settled set. True also
        when this generation is terminal already with that state."""

    def relist(self, manifest: Manifest) -> bool:
        """Know a finished job again that the ledger forgot with its memory: it joins lists, counts, the stream of
        transitions and the settled set as it ended. False when it is here in this or a later generation, or open."""

    def give_back(
        self, token: Token, *, delay_s: float = 0.0, count: bool = True, why: str = "", error: JobError | None = None
    ) -> bool:
        """Running -> queued, to be tried again after `delay_s`. With `count=False` the attempt does not count (drain,
        environment trouble). The caller ends the job itself when attempts are used up. A job whose cancel was asked,
        or whose attempts are used up all the same, is not queued: the next sweep hands it over to be ended."""

    def cancel(self, job_id: str, by: str, lease_s: float) -> tuple[JobState | None, Claim | None]:
        """Ask for a cancel. A queued or released job is seized for the caller, who commits the cancel. A running one
        is marked: its agent hears of it with the next renewal. Gives the state before, None for no such job."""

    def sweep(
        self,
        by: str,
        lease_s: float,
        agent_ttl_s: float,
        limit: int = 200,
        *,
        seized: int | None = None,
        fence: int | None = None,
    ) -> Swept:
        """Mend what time has broken; cost goes with what it finds. Expired leases: running jobs with attempts left are
        queued again, others are seized (`exhausted`); committed ones are handed over (`unpublished`). Released jobs of
        agents that are gone or silent for `agent_ttl_s` are queued again; agents with jobs released over 2 s ago and
        unclaimed are in `ring`. Agents silent for longer are removed (`dead_agents`).

        Args:
            limit: of each kind, in one call.
            seized: how many jobs are taken over at most (None: `limit`); the others are put off for 2 s.
        """

    def agent_gone(self, agent: str) -> int:
        """An agent is known to have ended: remove it, queue its released jobs again, let its leases expire now.
        Gives the number of jobs concerned."""

    def expire(self, before: float, limit: int = 1000) -> int:
        """Forget up to `limit` jobs that ended before that time; their identities stay settled. Gives how many: call
        again while it gives `limit`."""

    # -- reading -------------------------------------------------------------------------------------------------
    def job(self, job_id: str) -> Job | None: ...

    def jobs(
        self,
        *,
        state: JobState | None = None,
        function: str | None = None,
        since: float | None = None,
        reason: str | None = None,
        owner: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> JobPage:
        """Newest first. A cursor neither skips nor repeats jobs while others come and change. `reason` = error code."""

    def counts(self) -> dict[str, dict[JobState, int]]:
        """Jobs that the ledger still knows, per function and state."""

    def backlog(self, limit: int = 200) -> list[Backlog]:
        """Waiting jobs of every function that has some, up to `limit` jobs each."""

    def wait(self, job_id: str, timeout_s: float) -> Job | None:
        """Give the job when it is terminal or the time is over (several round trips, on the transition stream)."""

    def transitions(self, after: str, block_s: float = 0.0, limit: int = 500) -> list[Transition]:
        """Lines after a position (`"0"` = all that is kept, `"$"` = from now on), waiting up to `block_s` for one."""

    def last_position(self) -> str: ...

    # -- settled set ---------------------------------------------------------------------------------------------
    def known(self, job_ids: Sequence[str]) -> list[bool]:
        """Whether each id is live here or settled, in chunks: the reconciler asks page by page."""

    def settle(self, job_ids: Iterable[str]) -> int:
        """Add finished identities (rebuild). Gives how many were new."""

    def unsettle(self, job_ids: Iterable[str], *, fence: int | None = None) -> int:
        """Drop identities whose objects and manifests are gone (retention); those of jobs that are known here stay.
        Gives how many were dropped."""

    # -- agents --------------------------------------------------------------------------------------------------
    def heartbeat(self, report: AgentReport) -> HeartbeatReply: ...
    def agents(self) -> list[AgentReport]: ...
    def set_wanted(self, agent: str, wanted: Mapping[str, int], *, fence: int | None = None) -> bool:
        """Say which runners an agent shall have. False for an unknown agent."""

    def drain_agent(self, agent: str, *, fence: int | None = None) -> bool:
        """The agent gets no more jobs: release and claim refuse, its released jobs are queued again."""

    def set_grants(
        self,
        function: str,
        grants: Mapping[str, int],
        placement: Placement | None = None,
        *,
        fence: int | None = None,
    ) -> bool:
        """Replace the grants of a function: the next n submits go straight to that agent, with that placement."""

    def set_scaling(self, numbers: Mapping[str, int], *, fence: int | None = None) -> bool:
        """Replace the numbers that outside scalers read: `pool` -> agents wanted, `pool/function` -> slots wanted."""

    def scaling(self) -> dict[str, int]:
        """Give what `set_scaling` stored last; empty before."""

    def start_failed(self, function: str, revision: str, error: JobError, permanent: bool) -> int: ...
    def start_succeeded(self, function: str, revision: str) -> None: ...
    def start_failures(self) -> list[StartFailure]: ...

    # -- logs, notes for operators -------------------------------------------------------------------------------
    def append_log(self, token: Token, lines: Sequence[tuple[str, str]]) -> bool:
        """Append (stream, text) lines to the live log of a job; the newest 2,000 are kept, an hour after its end. Texts
        are cut at 4,096 characters. Not repeated when the connection breaks: lines may be lost, never doubled."""

    def log(self, job_id: str, after: str = "0", block_s: float = 0.0, limit: int = 1000) -> list[LogLine]: ...

    def note_ignored(self, bucket: str, key: str, reason: str) -> None:
        """Remember why an object is no job; the newest 10,000 are kept. The same note again changes nothing."""

    def ignored(self, limit: int = 1000) -> list[tuple[str, str, str, float]]:
        """Give (bucket, key, reason, time of the first note with this reason), newest first."""

    def note_junk(self, source: str, reason: str, body: bytes) -> None:
        """Keep a body that nobody understood: its first 4,096 bytes, and of the newest 1,000."""

    def junk(self, limit: int = 100) -> list[dict[str, Any]]:
        """Give them, newest first: `source`, `reason`, `body` (text), `size` (bytes), `at`."""

    def memory(self) -> Memory: ...
    def ping(self) -> float:
        """Seconds of one round trip."""

    def iter_open(self) -> Iterator[Job]:
        """All jobs that are not terminal, in no order, without blocking the server."""

    def close(self) -> None:
        """Close its connections."""
