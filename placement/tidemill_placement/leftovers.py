"""What nobody can reach or use any more: results without a manifest, code of old revisions, uploads that broke off.

    results    older than `results`, and neither manifest nor commit nor request nor job of their generation is left:
               then no call can show them
    code       older than `code`, no function has it now, and no function that was deployed or deleted since had it:
               agents may still be setting up what was replaced a moment ago
    uploads    begun before `uploads`: a living process would have ended them

A deploy brings an old archive back by writing it again (`Record.put_code`), so it is young then; and what is in use is
looked at again right before each deletion. Where a record cannot be read, all code stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import structlog

from tidemill.errors import InvalidSpec, NotAllowed, NotFound
from tidemill.failpoints import failpoint
from tidemill.ledger.api import Ledger
from tidemill.record import Record, keys
from tidemill.store import ObjectInfo

log = structlog.get_logger(__name__)


def listed(record: Record, prefix: str, before: float) -> Iterator[tuple[int, ObjectInfo | None]]:
    """Give the objects written before a time, and (objects listed, None) for each page."""
    for page in record.store.pages(record.bucket, prefix):
        yield len(page), None
        for info in page:
            if info.last_modified < before:
                yield 0, info


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Each pass is an iterator that gives the number of objects listed since, as those of `Retention`.

    Args:
        delete: deletes a key of the platform bucket, and counts it.
    """

    ledger: Ledger
    record: Record
    delete: Callable[[str], None]

    def results(self, before: float) -> Iterator[int]:
        group, reachable = "", True
        for step, info in listed(self.record, keys.RESULTS, before):
            if info is not None:
                function, name, *_ = info.key.removeprefix(keys.RESULTS).split("/")
                if f"{function}/{name}" != group:
                    group, reachable = f"{function}/{name}", self._reachable(f"{keys.MANIFESTS}{function}/{name}.json")
                    yield 0
                if not reachable:
                    self.delete(info.key)
                    failpoint("retention.result_deleted")
            yield step

    def _reachable(self, manifest: str) -> bool:
        """Whether something leads to the results of this job and generation, or may still."""
        names = keys.names(manifest)
        if names is None:
            return True  # not a name of ours
        if self.ledger.job(names[1]) is not None:
            return True
        wanted = (keys.request(*names), keys.commit(*names), keys.manifest(*names))
        return any(self.record.store.head(self.record.bucket, key) is not None for key in wanted)

    def code(self, before: float) -> Iterator[int]:
        used = self._used(before)
        if used is None:
            return
        for step, info in listed(self.record, keys.CODE, before):
            if info is not None and info.key not in used and self._unused_still(info.key, before):
                self.delete(info.key)
                failpoint("retention.code_deleted")
            yield step

    def _unused_still(self, key: str, before: float) -> bool:
        there = self.record.store.head(self.record.bucket, key)
        used = self._used(before)
        return there is not None and there.last_modified < before and used is not None and key not in used

    def _used(self, before: float) -> set[str] | None:
        """The keys of the archives that functions have, or had until not long ago; None when a record is damaged."""
        current = self.record.functions()
        if self.record.look_again(key for key in self.record.damaged() if key.startswith(keys.FUNCTIONS)):
            return None
        records = [*current, *self.ledger.functions().values()]
        for function in current:
            if max(function.deployed_at, function.deleted_at or 0.0) >= before:
                revisions = self.record.revisions(function.name)
                if revisions is None:
                    return None
                records += revisions
        return {keys.code(record.code_sha256) for record in records if record.code_sha256 is not None}

    def uploads(self, before: float) -> Iterator[int]:
        store, bucket = self.record.store, self.record.bucket
        try:
            found = store.unfinished(bucket)
        except (InvalidSpec, NotAllowed, NotFound) as error:
            log.info("retention.uploads_unseen", error=str(error))  # a store that does not say, or not to us
            return
        yield len(found)
        dropped = 0
        for upload in found:
            if upload.begun_at < before:
                store.drop_upload(bucket, upload)
                dropped += 1
            yield 0
        if dropped:
            log.info("retention.uploads_dropped", uploads=dropped)
