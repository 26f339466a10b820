"""Ends that placement brings about: no capacity, a function that is gone or cannot start, attempts used up.

All go the one way of `tidemill.record.ending`: the commit record first. An end that fails half-way is found again by
the sweep when its lease is over.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from tidemill.errors import ServiceUnavailable, TidemillError
from tidemill.ledger.api import Claim, Ledger
from tidemill.models import FunctionRecord, JobError, Placement
from tidemill.record import Record
from tidemill.record.ending import End, finish, resume
from tidemill_placement.lead import Lead

log = structlog.get_logger(__name__)


class Endings:
    """Ends jobs in the ledger and in the bucket. Each call may take some round trips to the store."""

    def __init__(self, ledger: Ledger, record: Record, holder: str, lease_s: float, lead: Lead | None = None) -> None:
        self._ledger = ledger
        self._record = record
        self._holder = holder
        self._lease_s = lease_s
        self._lead = lead or Lead()

    def no_capacity(self, job_id: str, reason: str, placement: Placement, function: FunctionRecord | None) -> bool:
        """Fail a waiting job that no pool can ever run."""
        hint = "Compare the function's resources and placement with `tidemill pool list`."
        error = JobError(code="no_capacity", message=reason, hint=hint)
        return self._seize(job_id, function, End("failed", error, placement=placement))

    def start_failed(self, job_id: str, error: JobError, function: FunctionRecord | None) -> bool:
        """Fail a waiting job whose function's runner cannot start."""
        return self._seize(job_id, function, End("failed", error.model_copy(update={"code": "start_failed"})))

    def function_deleted(self, job_id: str, name: str) -> bool:
        """Cancel a waiting job whose function is gone."""
        error = JobError(
            code="function_deleted",
            message=f"the function {name} was deleted while the job waited",
            hint="Deploy the function again, then retry the job.",
        )
        return self._seize(job_id, None, End("cancelled", error))

    def exhausted(self, claim: Claim, function: FunctionRecord | None) -> bool:
        """End a job whose last attempt vanished: cancelled where that was asked for, else failed."""
        if claim.cancel or claim.job.cancel_requested:
            error = JobError(code="cancelled", message="the job was cancelled while its agent was lost")
            return self._guarded(claim, lambda: finish(*self._of(claim, function, End("cancelled", error))))
        last = next((event for event in reversed(claim.job.history) if event.what.startswith("lease_")), None)
        where = f"; the last one was lost with {last.agent}" if last and last.agent else ""
        error = JobError(
            code="attempts_exhausted",
            message=f"all {claim.max_attempts} attempts ended without a result{where}",
            hint="`tidemill job show ID` lists the attempts; a function that uses up the memory ends this way.",
        )
        return self._guarded(claim, lambda: finish(*self._of(claim, function, End("failed", error))))

    def unpublished(self, claim: Claim) -> bool:
        """Finish a publication that its agent began."""
        return self._guarded(claim, lambda: resume(self._ledger, self._record, claim, self._lease_s))

    def _seize(self, job_id: str, function: FunctionRecord | None, end: End) -> bool:
        claim = self._ledger.seize(job_id, self._holder, self._lease_s, fence=self._lead.fence)
        if claim is None:
            return False
        return self._guarded(claim, lambda: finish(*self._of(claim, function, end)))

    def _of(
        self, claim: Claim, function: FunctionRecord | None, end: End
    ) -> tuple[Ledger, Record, Claim, FunctionRecord | None, End, float]:
        return self._ledger, self._record, claim, function, end, self._lease_s

    def _guarded(self, claim: Claim, work: Callable[[], object]) -> bool:
        try:
            work()
        except ServiceUnavailable as error:
            log.warning("job.end_delayed", job_id=claim.token.job_id, error=str(error))
            return False
        except TidemillError as error:  # a damaged record, say: this job has to wait for a person, the others have not
            log.error("job.cannot_end", job_id=claim.token.job_id, code=error.error_code, error=str(error))
            return False
        log.info("job.ended", job_id=claim.token.job_id, function=claim.job.function)
        return True
