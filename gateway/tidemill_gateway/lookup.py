"""One job by its id: from the ledger, or from the bucket when the bucket knows better.

The ledger is asked first. Two things can be wrong with it after a loss of Redis: it does not know the job (yet), or it
came back as an older copy and shows a generation that has a successor. So in every epoch but the first the bucket is
asked for the next generation too, once for each job and generation: what comes later goes through the ledger again.
"""

from __future__ import annotations

import re

from tidemill.errors import LedgerUnavailable, NotFound
from tidemill.ledger.api import Ledger
from tidemill.models import Job, JobState, Manifest, RequestRecord
from tidemill.record import Record, keys
from tidemill_gateway.intake.memo import Memo

_JOB_ID = re.compile(r"[0-9a-f]{32}")
_RESTORED_SEQUENCE = 3
_EPOCH_S = 2.0  # so long an epoch number is taken as the current one
_LOOKED, _LOOKED_S = 100_000, 3600.0


class Lookup:
    """Finds jobs. One for each process; safe from any thread."""

    def __init__(self, ledger: Ledger, record: Record) -> None:
        self._ledger = ledger
        self._record = record
        self._epochs: Memo[str, int] = Memo(1, _EPOCH_S)
        self._looked: Memo[tuple[str, int, int], bool] = Memo(_LOOKED, _LOOKED_S)

    def find(self, job_id: str) -> Job:
        """Give the newest generation of a job.

        Raises:
            NotFound: there is none.
            LedgerUnavailable: the ledger is being restored, and nobody can say.
        """
        if _JOB_ID.fullmatch(job_id):
            if (job := self._ledger.job(job_id)) is not None:
                return self._newer(job) or job
            names = sorted({*self._ledger.functions(), *self._record.function_names()})
            for name in names:
                if (manifest := self._newest(name, job_id)) is not None:
                    return job_of(manifest)
            if self._restoring() or any(self._record.get_request(name, job_id, 1) is not None for name in names):
                raise LedgerUnavailable(
                    f"the ledger lost its memory and is being restored: job {job_id} is not known yet",
                    hint="Ask again in some seconds; nothing that was accepted is lost.",
                )
        raise NotFound(f"there is no job {job_id}", hint="`tidemill job list` shows what there is.")

    def _newer(self, job: Job) -> Job | None:
        """The job's later generation that only the bucket knows, if there is one."""
        epoch = self._epoch()
        if epoch <= 1 or self._looked.get((job.id, job.generation, epoch)):
            return None
        newest, generation = None, job.generation + 1
        while (found := self._record.get_manifest(job.function, job.id, generation)) is not None:
            newest, generation = found, generation + 1
        if newest is not None:
            return job_of(newest)
        request = self._record.get_request(job.function, job.id, generation)
        if request is not None:
            return _accepted(request, job.revision)
        self._looked.put((job.id, job.generation, epoch), True)
        return None

    def _epoch(self) -> int:
        known = self._epochs.get("epoch")
        if known is None:
            found = self._ledger.epoch()
            known = found[0] if found is not None else 0
            self._epochs.put("epoch", known)
        return known

    def _restoring(self) -> bool:
        """Whether jobs may be missing here that were accepted: in a ledger that is older than the bucket says, or that
        is not the first one of its installation, until its rebuild is over and the reconciler has had time for a round
        (the sequence grows every 10 s)."""
        live, stored = self._ledger.epoch(), self._record.read_epoch()
        if live is None or (live[0] > 1 and live[1] < _RESTORED_SEQUENCE):
            return True
        return stored is not None and (stored[0].epoch, stored[0].sequence) > live

    def _newest(self, function: str, job_id: str) -> Manifest | None:
        """The newest manifest; those of older generations may have had their time."""
        pages = self._record.store.pages(self._record.bucket, f"{keys.MANIFESTS}{function}/{job_id}.")
        found = [name[2] for page in pages for info in page if (name := keys.names(info.key)) is not None]
        return self._record.get_manifest(function, job_id, max(found)) if found else None


def job_of(manifest: Manifest) -> Job:
    """Give the job that a manifest tells of."""
    facts = manifest.model_dump(exclude={"job_id", "state", "left", "run_s"})
    return Job.model_validate({**facts, "id": manifest.job_id, "state": manifest.state})


def _accepted(request: RequestRecord, revision: str) -> Job:
    return Job(
        id=request.job_id,
        function=request.function,
        revision=revision,
        generation=request.generation,
        state=JobState.queued,
        input=request.input,
        params=request.params,
        owner=request.owner,
        created_at=request.created_at,
    )
