"""The judge: reads buckets and ledger when all is over, and counts what was promised and did not hold.

| count | what it means |
|---|---|
| lost | accepted, and neither the record nor the ledger knows of it |
| stuck | known, and not over after the time to settle |
| doubled | an output was visible with two contents, or something ran for an input that nobody dropped |
| torn | a manifest whose outputs are missing, wrong, or of another run; an output that no manifest names |
| wrong | an end that it should not have had (failed without a reason of its own, succeeded though it must fail) |
| untrue | ledger and record disagree on a finished job, or the ledger's counts and sets are not those of its jobs |
| rows | Flower shows another state than the ledger, or no row |
| leaked | leases, queues or agents' sets that hold something though nothing runs; processes and folders left behind |
| refused | an answer that says "never" (4xx) to a call that was right |

It trusts nobody's word but the store's: identities are computed from what the store shows, results are read whole.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import redis

from tests.faults.load import IN, OUT, Entry
from tidemill.errors import NotFound
from tidemill.ledger.api import Ledger
from tidemill.ledger.keys import Keys
from tidemill.models import Job, Manifest, object_job_id
from tidemill.record import Record

COUNTS = ("lost", "stuck", "doubled", "torn", "wrong", "untrue", "rows", "leaked", "refused")
_ROWS = {"succeeded": ("SUCCESS",), "failed": ("FAILURE",), "cancelled": ("FAILURE", "REVOKED")}
FILES = {
    "small": {"result.json"},
    "large": {"result.json", "large.bin"},
    "many": {"result.json", "part-0.txt", "part-1.txt", "part-2.txt"},
}


@dataclass(slots=True)
class Verdict:
    """What was found: sentences per kind of violation, and facts that are none."""

    found: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in COUNTS})
    facts: dict[str, int] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        return not any(self.found.values())

    def say(self, kind: str, sentence: str) -> None:
        self.found[kind].append(sentence)


class Checker:
    """Looks at one run. `url`: Redis, for the sets that the ledger's interface does not show."""

    def __init__(self, record: Record, ledger: Ledger, url: str, journal: Sequence[Entry]) -> None:
        self._record = record
        self._ledger = ledger
        self._url = url
        self._journal = journal

    # -- while it settles ----------------------------------------------------------------------------------------
    def open(self) -> list[str]:
        """What is not over yet: cheap enough to be asked each second."""
        done = {job_id for _, job_id, _ in self._record.manifests()}
        waiting = [job.id for job in self._ledger.iter_open()]
        missing = [wanted.job_id for wanted in self._expected() if wanted.required and wanted.job_id not in done]
        return [*waiting, *missing]

    # -- at the end ----------------------------------------------------------------------------------------------
    def judge(self, writes: Mapping[str, Sequence[tuple[float, str]]]) -> Verdict:
        verdict = Verdict()
        expected = self._expected()
        jobs = self._jobs()
        manifests = self._manifests()
        for entry in self._journal:
            if entry.trouble:
                verdict.say("refused", f"{entry.key}: {entry.trouble}")
        for wanted in expected:
            self._one(verdict, wanted, manifests.get(wanted.job_id), jobs.get(wanted.job_id))
        self._phantoms(verdict, expected, manifests)
        self._outputs(verdict, expected, manifests)
        self._writes(verdict, writes)
        self._ledger_and_record(verdict, jobs, manifests)
        self._sets(verdict, jobs)
        verdict.facts |= {
            "accepted": sum(entry.accepted_at is not None for entry in self._journal),
            "never accepted": sum(entry.accepted_at is None for entry in self._journal),
            "jobs": len(manifests),
            "attempts": sum(manifest.attempt for manifest in manifests.values()),
            "commits": sum(1 for _ in self._record.commits()),
            "attempt objects": self._count("attempts/"),
            **dict(sorted(Counter(manifest.state for manifest in manifests.values()).items())),
        }
        return verdict

    def wrong_rows(self, rows: Mapping[str, str]) -> list[str]:
        """Jobs of the ledger that Flower shows otherwise; `rows`: its state of each task."""
        found = []
        for job in self._jobs().values():
            state = rows.get(job.id, "no row")
            if job.state.terminal and state not in _ROWS[job.state.value]:
                found.append(f"{job.id[:12]} is {job.state} in the ledger, {state} in Flower")
        return found

    # -- what should be ------------------------------------------------------------------------------------------
    def _expected(self) -> list[Wanted]:
        found = []
        for entry in self._journal:
            if entry.job_id is not None:
                found.append(Wanted(entry, entry.job_id, entry.accepted_at is not None))
            elif entry.drop.way in ("put", "presigned"):
                info = self._record.store.head(IN, entry.key)
                if info is not None:
                    job_id = object_job_id("lab", "local", IN, entry.key, info.etag, info.size, info.last_modified)
                    found.append(Wanted(entry, job_id, not entry.deleted))
                elif entry.accepted_at is not None and not entry.deleted:
                    found.append(Wanted(entry, "", False))  # the store lost it
        return found

    def _one(self, verdict: Verdict, wanted: Wanted, manifest: Manifest | None, job: Job | None) -> None:
        entry = wanted.entry
        name = f"{entry.key} ({wanted.job_id[:12]})"
        if not wanted.job_id:
            verdict.facts["lost by the store"] = verdict.facts.get("lost by the store", 0) + 1
            return
        if manifest is None:
            if job is not None and not job.state.terminal:
                last = f"; last: {job.history[-1].what} {job.history[-1].detail}" if job.history else ""
                verdict.say("stuck", f"{name} is {job.state}, attempt {job.attempt}, agent {job.agent}{last}"[:400])
            elif wanted.required:
                verdict.say("lost", f"{name}: no manifest; in the ledger: {job.state if job else 'nothing'}")
            return
        fine = {"failed"} if entry.drop.want == "fail" else {"succeeded"}
        if entry.retried and manifest.generation < 2:
            verdict.say("lost", f"{name}: it was retried, and generation 2 has no manifest")
        if manifest.generation > 1 and entry.drop.twist != "retry":
            verdict.say("doubled", f"{name}: nobody asked for generation {manifest.generation}")
        if entry.cancelled or entry.deleted:
            fine |= {"cancelled", "failed"}
        if manifest.state not in fine:
            error = manifest.error
            verdict.say("wrong", f"{name} is {manifest.state}: {error.code if error else ''} {error and error.message}")

    def _phantoms(self, verdict: Verdict, expected: Iterable[Wanted], manifests: Mapping[str, Manifest]) -> None:
        """Jobs that no input asks for. An input that was put more than once has a job for each time it was there."""
        known = {wanted.job_id for wanted in expected}
        often = {entry.key for entry in self._journal if entry.tries > 1 or entry.deleted}
        calls = {entry.key for entry in self._journal if entry.drop.way in ("call", "named") and entry.job_id is None}
        for job_id, manifest in manifests.items():
            if job_id not in known and manifest.input.key not in often and not calls:
                verdict.say("doubled", f"{manifest.function} {job_id[:12]}: nobody dropped {manifest.input.key}")

    # -- outputs -------------------------------------------------------------------------------------------------
    def _outputs(self, verdict: Verdict, expected: Iterable[Wanted], manifests: Mapping[str, Manifest]) -> None:
        entries = {wanted.job_id: wanted.entry for wanted in expected}
        named = {(o.bucket, o.key) for m in manifests.values() for o in (*m.outputs, *m.left)}
        for job_id, manifest in manifests.items():
            if manifest.state == "succeeded" and job_id in entries:
                self._whole(verdict, entries[job_id], manifest)
        for bucket, prefix in ((OUT, ""), (self._record.bucket, "results/")):
            for page in self._record.store.pages(bucket, prefix):
                for info in page:
                    if (bucket, info.key) not in named:
                        verdict.say("torn", f"{bucket}/{info.key} is in no manifest")

    def _whole(self, verdict: Verdict, entry: Entry, manifest: Manifest) -> None:
        name = f"{entry.key} ({manifest.job_id[:12]})"
        files = {output.name for output in manifest.outputs}
        if files != FILES.get(entry.drop.want, set()):
            verdict.say("torn", f"{name} has {sorted(files)}")
        commit = self._record.get_commit(manifest.function, manifest.job_id, manifest.generation)
        if commit is None or {o.sha256 for o in commit.outputs} != {o.sha256 for o in manifest.outputs}:
            verdict.say("torn", f"{name}: the commit record tells of another run than the manifest")
        nonces = set()
        for output in manifest.outputs:
            try:
                body = self._record.store.get(output.bucket, output.key)
            except NotFound:
                verdict.say("torn", f"{name}: {output.bucket}/{output.key} is not there")
                continue
            if hashlib.sha256(body).hexdigest() != output.sha256 or len(body) != output.size:
                verdict.say("torn", f"{name}: {output.bucket}/{output.key} is not what the manifest says")
            nonces.add(json.loads(body)["nonce"] if output.name == "result.json" else body[:32].decode())
            if output.name == "result.json" and json.loads(body)["input"] != entry.digest:
                verdict.say("torn", f"{name}: the result is of another content")
        if len(nonces) != 1:
            verdict.say("torn", f"{name}: the outputs are of {len(nonces)} runs")

    def _writes(self, verdict: Verdict, writes: Mapping[str, Sequence[tuple[float, str]]]) -> None:
        """Writes of a key with different contents, as the store's own events told them."""
        often = {entry.key.removeprefix("in/") for entry in self._journal if entry.tries > 1}
        for path, times in writes.items():
            contents = {content for _, content in times}
            if len(contents) > 1 and not any(key in path for key in often):
                verdict.say("doubled", f"{path} was written with {len(contents)} contents")

    # -- the ledger ----------------------------------------------------------------------------------------------
    def _ledger_and_record(self, verdict: Verdict, jobs: Mapping[str, Job], manifests: Mapping[str, Manifest]) -> None:
        for job_id, job in jobs.items():
            manifest = manifests.get(job_id)
            if job.state.terminal and (manifest is None or manifest.state != job.state.value):
                verdict.say("untrue", f"{job_id[:12]} is {job.state} here, {manifest and manifest.state} in the record")
            elif not job.state.terminal and manifest is not None and manifest.generation == job.generation:
                verdict.say("stuck", f"{job_id[:12]} is {job.state} here, and {manifest.state} in the record")
        ids = list(manifests)
        for job_id, known in zip(ids, self._ledger.known(ids), strict=True):
            if not known and self._may_come_again(manifests[job_id]):
                verdict.say("untrue", f"{job_id[:12]} is finished and not settled, though listings show it")
        counted: dict[str, Counter[str]] = defaultdict(Counter)
        for job in jobs.values():
            counted[job.function][job.state.value] += 1
        said = {
            function: {state.value: n for state, n in states.items() if n}
            for function, states in self._ledger.counts().items()
        }
        if {f: dict(c) for f, c in counted.items()} != {f: c for f, c in said.items() if c}:
            verdict.say("untrue", f"counts say {said}, the jobs are {dict(counted)}")

    def _may_come_again(self, manifest: Manifest) -> bool:
        """Whether a listing of inputs or requests shows this job. Redis may forget its last second when it dies, and
        then it learns of a finished job from there; of an input that is another one by now it need not learn."""
        if self._record.get_request(manifest.function, manifest.job_id, manifest.generation) is not None:
            return True
        info = self._record.store.head(manifest.input.bucket, manifest.input.key)
        if info is None:
            return False
        seen = (info.bucket, info.key, info.etag, info.size, info.last_modified)
        return object_job_id(manifest.function, "local", *seen) == manifest.job_id

    def _sets(self, verdict: Verdict, jobs: Mapping[str, Job]) -> None:
        """Sets that must be empty when nothing runs."""
        if any(not job.state.terminal for job in jobs.values()):
            return  # said already, as stuck
        keys = Keys("tm:")
        with redis.Redis.from_url(self._url, decode_responses=True) as client:
            for shape in ("leases", "unclaimed", "open", "active"):
                if size := client.zcard(keys.one(shape)):
                    verdict.say("leaked", f"{shape} holds {size}: {client.zrange(keys.one(shape), 0, 3)}")
            for shape in ("queue", "released", "running", "publishing"):
                for key in client.scan_iter(keys.of(shape, "*"), count=1000):
                    verdict.say("leaked", f"{key} exists")

    # ------------------------------------------------------------------------------------------------------------
    def _jobs(self) -> dict[str, Job]:
        found: dict[str, Job] = {}
        cursor = None
        while True:
            page = self._ledger.jobs(cursor=cursor, limit=500)
            found |= {job.id: job for job in page.jobs}
            cursor = page.cursor
            if cursor is None:
                return found

    def _manifests(self) -> dict[str, Manifest]:
        found: dict[str, Manifest] = {}
        for function, job_id, generation in self._record.manifests():
            manifest = self._record.get_manifest(function, job_id, generation)
            if manifest is not None and (job_id not in found or found[job_id].generation < generation):
                found[job_id] = manifest
        return found

    def _count(self, prefix: str) -> int:
        return sum(len(page) for page in self._record.store.pages(self._record.bucket, prefix))


@dataclass(frozen=True, slots=True)
class Wanted:
    """A job that must (or may) exist: `required` false for an input that was deleted again."""

    entry: Entry
    job_id: str
    required: bool
