"""The one way in which a job ends, for whoever ends it: agent, gateway (cancel), placement (no capacity, exhausted).

    commit record (the store decides) -> ledger: committed -> outputs, manifest -> ledger: succeeded|failed|cancelled

The store comes first at each step, so a death in between leaves at most a ledger that does not know yet; whoever holds
the job next looks first (`resume`) and goes on where the store is. A caller whose commit was not the first one finishes
the one that was.

A result that is published in a few milliseconds is told to the ledger once, as published: whoever waits for it does
not wait for the mirror of the commit. Should the publication fail, the commit is told after all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from tidemill.errors import LedgerUnavailable, TidemillError
from tidemill.failpoints import failpoint
from tidemill.ledger.api import Claim, Ended, Ledger
from tidemill.models import (
    CommitOutput,
    CommitRecord,
    Cost,
    Event,
    FunctionRecord,
    JobError,
    Manifest,
    Placement,
)
from tidemill.models.record import Final
from tidemill.record.outputs import output_key, without_doubles
from tidemill.record.record import Record

__all__ = ["End", "finish", "output_key", "resume"]
_QUICK_S, _QUICK_OUTPUTS = 0.05, 4  # a commit that took so long, so many small outputs: published in no time
_FRESH_S = 1.0  # after our own commit, for so long nobody else can have published it: the lease is far longer
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class End:
    """How a job ends. Times in seconds since 1970 (UTC), `run_s` in seconds; None: what the job says itself."""

    outcome: Final
    error: JobError | None = None
    outputs: tuple[CommitOutput, ...] = ()
    cost: Cost = field(default_factory=Cost)
    placement: Placement | None = None
    run_s: float = 0.0
    started_at: float | None = None
    history: tuple[Event, ...] = ()


def finish(
    ledger: Ledger,
    record: Record,
    claim: Claim,
    function: FunctionRecord | None,
    end: End,
    lease_s: float = 15,
    now: Callable[[], float] = time.time,
) -> Manifest | None:
    """Commit this end and publish it, or publish the one that was committed before.

    Gives the manifest, which may tell of another end than the given one: somebody else's, or a conflict found when the
    outputs were published. None when the token is stale and another attempt's commit stands: its holder publishes it.
    May be called again after any error.

    Raises:
        StoreUnavailable: nobody knows how far it came; call again.
        LedgerUnavailable: the end is durable, and the ledger hears of it from `resume` or the reconciler.
    """
    began, mine = time.monotonic(), _commit_record(claim, function, end, now())
    won, stored = record.commit(mine)
    failpoint("ending.committed")
    if stored is mine and time.monotonic() - began < _QUICK_S and _quick(mine):
        try:
            return _publish(ledger, record, claim, mine, fresh=True)
        except LedgerUnavailable:
            raise
        except TidemillError:
            _tell_committed(ledger, claim, mine, lease_s)
            raise
    held = _tell_committed(ledger, claim, stored, lease_s)
    if not won and not held:
        return None
    return _publish(ledger, record, claim, stored, fresh=stored is mine and time.monotonic() - began < _FRESH_S)


def resume(ledger: Ledger, record: Record, claim: Claim, lease_s: float = 15) -> Manifest | None:
    """Look whether this generation has ended already, and bring that to its end. None: it has not, run it.

    Raises as `finish`.
    """
    token = claim.token
    where = (claim.job.function, token.job_id, token.generation)
    manifest = record.get_manifest(*where)
    if manifest is not None:
        ledger.published(token, Ended.of(manifest))
        return manifest
    stored = record.get_commit(*where)
    if stored is None:
        return None
    _tell_committed(ledger, claim, stored, lease_s)
    return _publish(ledger, record, claim, stored)


def _tell_committed(ledger: Ledger, claim: Claim, stored: CommitRecord, lease_s: float) -> bool:
    """Whether the token is the current one; a ledger that is away is no reason to keep results back."""
    try:
        held = ledger.commit(claim.token, _of_commit(stored), lease_s)
    except LedgerUnavailable as error:
        log.warning("job.commit_not_mirrored", job_id=claim.token.job_id, error=str(error))
        held = True
    failpoint("ending.ledger_told")
    return held


def _quick(commit: CommitRecord) -> bool:
    return len(commit.outputs) <= _QUICK_OUTPUTS and all(output.inline is not None for output in commit.outputs)


def _publish(ledger: Ledger, record: Record, claim: Claim, stored: CommitRecord, *, fresh: bool = False) -> Manifest:
    manifest = record.publish(stored, fresh=fresh)
    failpoint("ending.published")
    ledger.published(claim.token, Ended.of(manifest))
    return manifest


def _commit_record(claim: Claim, function: FunctionRecord | None, end: End, now_s: float) -> CommitRecord:
    job, token = claim.job, claim.token
    output = function.spec.output if function is not None else None
    return CommitRecord(
        job_id=token.job_id,
        function=job.function,
        revision=function.revision if function is not None else job.revision,
        generation=token.generation,
        outcome=end.outcome,
        nonce=token.nonce,
        epoch=token.epoch,
        attempt=token.attempt,
        owner=job.owner,
        pool=job.pool,
        agent=job.agent,
        input=job.input,
        params=job.params,
        outputs=without_doubles(end.outputs),
        on_conflict=output.on_conflict if output is not None else "fail",
        error=end.error,
        placement=end.placement or job.placement,
        cost=end.cost,
        created_at=job.created_at,
        claimed_at=job.started_at,
        started_at=end.started_at if end.started_at is not None else job.started_at,
        committed_at=now_s,
        run_s=end.run_s,
        history=end.history or job.history,
    )


def _of_commit(commit: CommitRecord) -> Ended:
    outputs = tuple(output.published(output.key) for output in commit.outputs)
    return Ended(
        state=commit.outcome,
        error=commit.error,
        outputs=outputs,
        usd=commit.cost.usd,
        gpu_seconds=commit.cost.gpu_seconds,
        run_s=commit.run_s,
        revision=commit.revision,
    )
