"""One attempt: whatever the function or a server does, the job ends once, goes back, or is left to its lease.

Ledger and store are the in-memory twins; only the runner process is a stand-in (`tests/integration` has real ones).
"""

from __future__ import annotations

import base64
import errno
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.waiting import wait_until
from tidemill.errors import StoreUnavailable
from tidemill.ledger.api import AgentReport, Claim, NewJob
from tidemill.models import (
    FunctionRecord,
    FunctionSpec,
    Job,
    JobError,
    JobInput,
    JobState,
    Manifest,
    Placement,
    object_job_id,
)
from tidemill.record import Record
from tidemill.store import ObjectInfo
from tidemill.testing import MemoryLedger, MemoryStore
from tidemill_workers import attempt as attempt_module
from tidemill_workers.agent.fleet import Fleet
from tidemill_workers.agent.leases import LeaseKeeper
from tidemill_workers.agent.outputs import Collected, collect
from tidemill_workers.agent.runners import Outcome, Task
from tidemill_workers.agent.starting import StartFailed
from tidemill_workers.attempt import Attempt, Workshop

AGENT = "near-000001"
SPEC = {
    "name": "fn",
    "handler": "a:b",
    "trigger": [{"bucket": "inbox", "prefix": "fn/"}],
    "output": {"bucket": "outbox", "prefix": "fn/"},
    "params": {"k": {"type": "integer", "default": 3}},
}


class StandIn:
    """Stands for a runner process: does what the test says."""

    def __init__(self, behave: Callable[[Task], Outcome]) -> None:
        self.behave = behave
        self.alive = True
        self.tasks: list[Task] = []

    def start(self) -> None: ...

    def stop(self, grace_s: float = 1.0) -> None:
        self.alive = False

    def cancel(self, grace_s: float = 1.0) -> None: ...

    def run(self, task: Task, on_log: Any, on_progress: Any) -> Outcome:
        self.tasks.append(task)
        on_log("stdout", "a line")
        on_progress(1, 2, "page")
        return self.behave(task)


class Scene:
    """A deployed function, one object, one agent, and everything an attempt needs."""

    def __init__(self, tmp_path: Path) -> None:
        self.store = MemoryStore()
        self.record = Record(self.store)
        self.record.prepare()
        for bucket in ("inbox", "outbox"):
            self.store.ensure_bucket(bucket)
        self.ledger = MemoryLedger()
        self.ledger.begin_epoch(1, 0)
        self.function = FunctionRecord(
            spec=FunctionSpec.model_validate(SPEC), revision="r1", deployed_at=0, triggers_since=0
        )
        self.ledger.put_function(self.function)
        self.ledger.heartbeat(AgentReport(name=AGENT, pool="near", slots=1))
        self.runner = StandIn(lambda task: self.outcome(task, {"result.json": b'{"ok": true}'}))
        self.start_fault: StartFailed | None = None
        self.keeper = LeaseKeeper(self.ledger, 15, 2)
        self.draining = False
        self.work_dir = tmp_path
        self.shop = Workshop(
            agent=AGENT,
            pool="near",
            ledger=self.ledger,
            record=self.record,
            fleet=Fleet(1, self._make),  # type: ignore[arg-type]
            leases=self.keeper,
            find=lambda name, version=None: self.ledger.function(name),
            price=lambda: (0.5, True),
            work_dir=tmp_path,
            lease_s=15,
            inline_bytes=100,
            log_bytes=4096,
            draining=lambda: self.draining,
        )

    def _make(self, function: FunctionRecord) -> StandIn:
        if self.start_fault:
            raise self.start_fault
        return self.runner

    @staticmethod
    def outcome(task: Task, files: dict[str, bytes], kind: Any = "succeeded", **more: Any) -> Outcome:
        folder = task.outputs
        folder.mkdir()
        for name, body in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(body)
        return Outcome(kind=kind, error=more.get("error"), delay_s=more.get("delay_s"), seconds=2.0, outputs_dir=folder)

    def claim(self, body: bytes = b"input", max_attempts: int = 3, key: str = "fn/a.txt") -> Claim:
        self.store.put("inbox", key, body, content_type="text/plain", metadata={"colour": "blue"})
        info = self.store.head("inbox", key)
        assert info is not None
        source = JobInput(bucket="inbox", key=key, etag=info.etag, size=info.size, last_modified=info.last_modified)
        job_id = object_job_id("fn", "local", "inbox", key, info.etag, info.size, info.last_modified)
        self.ledger.submit(NewJob(id=job_id, function="fn", input=source, revision="r1", max_attempts=max_attempts))
        return self.claim_again(job_id)

    def claim_again(self, job_id: str) -> Claim:
        assert self.ledger.release(job_id, AGENT, Placement(pool="near", reason="only one"))
        return self.ledger.claim(AGENT, 1, 15)[0]

    def work(self, claim: Claim) -> Job:
        Attempt(self.shop, claim).work()
        job = self.ledger.job(claim.token.job_id)
        assert job is not None
        return job

    def manifest(self, job: Job) -> Manifest:
        found = self.record.get_manifest("fn", job.id, job.generation)
        assert found is not None
        return found


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.keeper.close()
    assert list(tmp_path.iterdir()) == [], "an attempt leaves nothing on the disk"


def test_a_success_is_published_with_its_cost_and_log(scene: Scene) -> None:
    job = scene.work(scene.claim())
    assert job.state is JobState.succeeded
    assert job.cost.usd == pytest.approx(1.0)
    assert job.cost.gpu_seconds == pytest.approx(2.0)
    assert scene.store.get("outbox", "fn/a.txt/result.json") == b'{"ok": true}'
    assert scene.manifest(job).outputs[0].key == "fn/a.txt/result.json"
    assert b"a line" in (scene.record.get_log("fn", job.id, 1) or b"")
    assert [line.text for line in scene.ledger.log(job.id)] == ["a line"], "who follows it sees the last line, too"
    task = scene.runner.tasks[0]
    assert task.params == {"k": 3}, "defaults are filled in"
    assert (task.name, task.key) == ("a.txt", "fn/a.txt")
    assert (task.content_type, dict(task.metadata)) == ("text/plain", {"colour": "blue"})


def test_a_large_output_goes_through_the_attempts_prefix(scene: Scene) -> None:
    body = bytes(range(256)) * 10
    scene.runner.behave = lambda task: scene.outcome(task, {"big.bin": body, "sub/small.txt": b"s"})
    job = scene.work(scene.claim())
    commit = scene.record.get_commit("fn", job.id, 1)
    assert commit is not None
    by_name = {output.name: output for output in commit.outputs}
    assert by_name["big.bin"].inline is None
    assert by_name["big.bin"].attempt_key is not None
    assert base64.b64decode(by_name["sub/small.txt"].inline or "") == b"s"
    assert scene.store.get("outbox", "fn/a.txt/big.bin") == body


def test_many_small_outputs_leave_the_commit_record_small_and_are_all_published(scene: Scene) -> None:
    files = {f"{number:03}.bin": bytes([number]) * 65536 for number in range(200)}
    scene.shop = replace(scene.shop, inline_bytes=65536)
    scene.runner.behave = lambda task: scene.outcome(task, files)
    job = scene.work(scene.claim())
    commit = scene.record.get_commit("fn", job.id, 1)
    assert commit is not None
    assert len(commit.model_dump_json()) < 2 * 2**20
    assert sum(output.inline is not None for output in commit.outputs) == 16, "1 MiB of them"
    assert {name: scene.store.get("outbox", f"fn/a.txt/{name}") for name in files} == files
    assert len(scene.manifest(job).outputs) == 200


def test_an_output_that_grows_while_it_is_read_is_not_inline(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(folder: Path) -> Collected:
        found = collect(folder)
        return Collected([replace(file, size=1) for file in found.files], found.skipped)

    monkeypatch.setattr(attempt_module, "collect", short)
    scene.runner.behave = lambda task: scene.outcome(task, {"big.bin": b"x" * 1000})
    job = scene.work(scene.claim())
    commit = scene.record.get_commit("fn", job.id, 1)
    assert commit is not None
    assert (commit.outputs[0].inline, commit.outputs[0].size) == (None, 1000)
    assert scene.store.get("outbox", "fn/a.txt/big.bin") == b"x" * 1000


def test_an_exception_is_tried_again_until_attempts_are_used_up(scene: Scene) -> None:
    fault = JobError(code="function_failed", message="boom", traceback="Traceback ...")
    scene.runner.behave = lambda task: scene.outcome(task, {}, "failed", error=fault)
    claim = scene.claim(max_attempts=2)
    job = scene.work(claim)
    assert job.state is JobState.queued
    scene.ledger.begin_epoch(1, 0)
    second = scene.claim_again(job.id)
    assert second.token.attempt == 2
    job = scene.work(second)
    assert job.state is JobState.failed
    assert job.error is not None
    assert job.error.traceback == "Traceback ..."
    assert scene.manifest(job).state == "failed"


@pytest.mark.parametrize("kind", ["permanent", "timeout"])
def test_a_permanent_error_and_a_timeout_are_not_tried_again(scene: Scene, kind: str) -> None:
    fault = JobError(code=kind, message="no")
    scene.runner.behave = lambda task: scene.outcome(task, {}, kind, error=fault)
    job = scene.work(scene.claim())
    assert job.state is JobState.failed
    assert job.error is not None
    assert job.error.code == kind


def test_an_input_that_is_gone_fails_with_that_reason(scene: Scene) -> None:
    claim = scene.claim()
    scene.store.delete("inbox", "fn/a.txt")
    job = scene.work(claim)
    assert (job.state, job.error and job.error.code) == (JobState.failed, "input_gone")


@pytest.mark.parametrize("when", ["before the run", "during the run"])
def test_an_input_that_changes_is_superseded_and_never_published(scene: Scene, when: str) -> None:
    claim = scene.claim()
    if when == "before the run":
        scene.store.put("inbox", "fn/a.txt", b"another content")
    else:
        behave = scene.runner.behave

        def change(task: Task) -> Outcome:
            scene.store.put("inbox", "fn/a.txt", b"another content")
            return behave(task)

        scene.runner.behave = change
    job = scene.work(claim)
    assert (job.state, job.error and job.error.code) == (JobState.cancelled, "superseded")
    assert scene.store.head("outbox", "fn/a.txt/result.json") is None


@pytest.mark.parametrize("call", ["put_log", "commit"])
def test_an_input_that_changes_while_the_store_is_away_is_never_published(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The result in hand is tried again for a minute; each try looks at the input anew, right before its commit."""
    claim = scene.claim()
    real = getattr(scene.record, call)

    def away(*args: Any) -> Any:
        monkeypatch.setattr(scene.record, call, real)
        scene.store.put("inbox", "fn/a.txt", b"another content")
        raise StoreUnavailable("away")

    monkeypatch.setattr(scene.record, call, away)
    job = scene.work(claim)
    assert (job.state, job.error and job.error.code) == (JobState.cancelled, "superseded")
    assert scene.store.head("outbox", "fn/a.txt/result.json") is None


def test_a_commit_that_arrived_counts_though_the_input_changed_before_the_answer_was_tried_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = scene.claim()
    commit = scene.record.commit

    def lost(record: Any) -> Any:
        monkeypatch.setattr(scene.record, "commit", commit)
        commit(record)
        scene.store.put("inbox", "fn/a.txt", b"another content")
        raise StoreUnavailable("the answer was lost")

    monkeypatch.setattr(scene.record, "commit", lost)
    job = scene.work(claim)
    assert job.state is JobState.succeeded
    assert scene.store.get("outbox", "fn/a.txt/result.json") == b'{"ok": true}'


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("kept", [False, True])
def test_in_a_bucket_with_versions_a_job_is_superseded_unless_its_caller_named_the_version(
    scene: Scene, pinned: bool, kept: bool
) -> None:
    claim = scene.claim()
    first, head, behave = scene.store.head("inbox", "fn/a.txt"), scene.store.head, scene.runner.behave

    def change(task: Task) -> Outcome:
        scene.store.put("inbox", "fn/a.txt", b"another content")
        return behave(task)

    def versioned(bucket: str, key: str, version_id: str | None = None) -> ObjectInfo | None:
        return (first if kept else None) if version_id == "v1" else head(bucket, key)

    scene.runner.behave = change
    scene.store.head = versioned  # type: ignore[method-assign]
    facts = {"version_id": "v1", "pinned": pinned}
    job = claim.job.model_copy(update={"input": claim.job.input.model_copy(update=facts)})
    job = scene.work(replace(claim, job=job))
    if pinned and kept:
        assert job.state is JobState.succeeded
        return
    assert (job.state, job.error and job.error.code) == (JobState.cancelled, "superseded")
    assert head("outbox", "fn/a.txt/result.json") is None


def test_a_failed_start_gives_the_job_back_uncounted(scene: Scene) -> None:
    scene.start_fault = StartFailed(JobError(code="start_failed", message="no module named x"), permanent=True)
    job = scene.work(scene.claim())
    assert job.state is JobState.queued
    assert job.attempt == 0
    assert [event.detail for event in job.history] == ["start_failed: no module named x"]


def test_failed_starts_that_may_pass_are_attempts_and_end(scene: Scene) -> None:
    fault = JobError(code="start_failed", message="RuntimeError: no GPU is free", traceback="Traceback ...")
    scene.start_fault = StartFailed(fault, permanent=False)
    job = scene.work(scene.claim(max_attempts=2))
    assert (job.state, job.attempt) == (JobState.queued, 1)
    scene.ledger.begin_epoch(1, 0)
    job = scene.work(scene.claim_again(job.id))
    assert job.state is JobState.failed
    assert job.error == fault


def test_an_error_that_nobody_foresaw_is_counted_and_told(scene: Scene) -> None:
    def behave(task: Task) -> Outcome:
        raise ZeroDivisionError("a fault of ours")

    scene.runner.behave = behave
    job = scene.work(scene.claim(max_attempts=2))
    assert (job.state, job.attempt) == (JobState.queued, 1), "given back at once, not left to its lease"
    scene.ledger.begin_epoch(1, 0)
    job = scene.work(scene.claim_again(job.id))
    assert job.state is JobState.failed
    assert job.error is not None
    assert job.error.code == "internal"
    assert "in behave" in job.error.traceback
    assert "ZeroDivisionError: a fault of ours" in job.error.message


@pytest.mark.parametrize("when", ["before it begins", "while it fetches"])
def test_an_agent_whose_disk_is_full_gives_the_job_back_uncounted_and_works_when_there_is_room(
    scene: Scene, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    claim = scene.claim(max_attempts=1)
    with monkeypatch.context() as patch:
        if when == "before it begins":
            patch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=4096, total=2**40))
        else:
            patch.setattr(scene.store, "download", no_room)
        job = scene.work(claim)
    assert (job.state, job.attempt, scene.runner.tasks) == (JobState.queued, 0, [])
    assert f"trouble on {AGENT}: [Errno 28]" in job.history[-1].detail
    scene.ledger.begin_epoch(1, 0)
    assert scene.work(scene.claim_again(job.id)).state is JobState.succeeded


def test_an_input_that_no_emptying_of_the_disk_makes_room_for_fails_and_is_not_fetched(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimpleNamespace(free=3 * 2**20, total=4 * 2**20)
    fits = scene.claim(b"x" * 4 * 2**20, key="fn/fits")
    too_large = scene.claim(b"x" * (4 * 2**20 + 1), key="fn/large", max_attempts=2)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: disk)
    assert scene.work(fits).state is JobState.succeeded, "the space that is free decides nothing"
    monkeypatch.setattr(scene.store, "download", lambda *_, **__: pytest.fail("fetched"))
    job = scene.work(too_large)
    assert (job.state, job.attempt) == (JobState.queued, 1), "another agent may have a larger disk"
    job = scene.work(scene.claim_again(job.id))
    assert (job.state, job.error and job.error.code) == (JobState.failed, "input_too_large")
    assert job.error is not None
    assert "4,194,305 bytes" in job.error.message
    assert "4,194,304 bytes" in job.error.message
    assert job.error.hint is not None
    assert "TIDEMILL_AGENT__WORK_DIR" in job.error.hint


def test_a_store_that_takes_nothing_costs_no_attempt_and_the_reason_is_told(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("the store did not do it: no space left on device")

    monkeypatch.setattr(attempt_module, "COMMIT_PATIENCE_S", 0.0)
    claim = scene.claim(max_attempts=1)
    with monkeypatch.context() as patch:
        patch.setattr(scene.store, "put", full)
        job = scene.work(claim)
    assert (job.state, job.attempt, len(scene.runner.tasks)) == (JobState.queued, 0, 1)
    assert "no space left on device" in job.history[-1].detail
    scene.ledger.begin_epoch(1, 0)
    assert scene.work(scene.claim_again(job.id)).state is JobState.succeeded


def test_a_drained_agent_gives_back_what_it_has_not_started(scene: Scene) -> None:
    claim = scene.claim()
    scene.draining = True
    job = scene.work(claim)
    assert (job.state, job.attempt) == (JobState.queued, 0)


def test_the_log_says_why_a_job_was_given_back(scene: Scene) -> None:
    with capture_logs() as lines:
        scene.start_fault = StartFailed(JobError(code="start_failed", message="no module\nnamed x"), permanent=True)
        job = scene.work(scene.claim())
        scene.start_fault, scene.draining = None, True
        scene.work(scene.claim_again(job.id))
        scene.draining = False
        scene.work(scene.claim_again(job.id))
    ends = [(line["outcome"], line.get("why")) for line in lines if line["event"] == "attempt.ended"]
    assert ends == [
        ("given back", "start_failed: no module named x"),
        ("given back", "the agent was stopped"),
        ("succeeded", None),
    ]


def test_a_run_that_the_agents_end_interrupts_is_given_back(scene: Scene) -> None:
    def interrupted(task: Task) -> Outcome:
        scene.draining = True
        return scene.outcome(task, {}, "cancelled")

    scene.runner.behave = interrupted
    job = scene.work(scene.claim())
    assert (job.state, job.attempt) == (JobState.queued, 0)


def test_what_one_attempt_cannot_send_ends_no_other_attempts_lease(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> bool:
        raise ValueError("this is no progress")

    monkeypatch.setattr(scene.ledger, "progress", refuse)
    one, other = scene.claim(key="fn/one"), scene.claim(key="fn/other")
    heard = threading.Event()
    with scene.keeper.hold(one.token, lambda: None) as odd, scene.keeper.hold(other.token, heard.set):
        odd.progress = (1.0, None, None)
        wait_until(lambda: odd.progress is None)
        scene.ledger.cancel(other.token.job_id, "test", 15)
        assert heard.wait(10), "the leases are renewed all the same"


def test_a_second_attempt_finishes_what_the_first_committed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = scene.claim()

    def die(commit: Any, **_: Any) -> Any:
        raise StoreUnavailable("killed between commit and publication")

    monkeypatch.setattr(attempt_module, "COMMIT_PATIENCE_S", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(scene.record, "publish", die)
        patch.setattr(scene.ledger, "give_back", lambda *a, **k: False)
        Attempt(scene.shop, claim).work()
    assert scene.store.head("outbox", "fn/a.txt/result.json") is None
    scene.ledger.agent_gone(AGENT)
    swept = scene.ledger.sweep("finisher", 15, 30)
    scene.ledger.heartbeat(AgentReport(name=AGENT, pool="near", slots=1))
    runs = len(scene.runner.tasks)
    job = scene.work(swept.unpublished[0] if swept.unpublished else scene.claim_again(claim.token.job_id))
    assert job.state is JobState.succeeded
    assert len(scene.runner.tasks) == runs, "what was committed is not run again"
    assert scene.store.get("outbox", "fn/a.txt/result.json") == b'{"ok": true}'


def test_a_deleted_function_cancels_its_waiting_job(scene: Scene) -> None:
    claim = scene.claim()
    scene.ledger.remove_function("fn")
    job = scene.work(claim)
    assert (job.state, job.error and job.error.code) == (JobState.cancelled, "function_deleted")


def test_too_many_outputs_fail_the_job_and_publish_none(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidemill_workers.agent.outputs import TooManyOutputs

    def refuse(folder: Path) -> None:
        raise TooManyOutputs("more than 10,000 files")

    monkeypatch.setattr(attempt_module, "collect", refuse)
    job = scene.work(scene.claim())
    assert (job.state, job.error and job.error.code) == (JobState.failed, "output_refused")


def test_a_long_log_keeps_its_beginning_and_its_end(scene: Scene) -> None:
    keeper = attempt_module._LogKeeper(1000)
    for number in range(1000):
        keeper.add("stdout", f"line {number}")
    text = keeper.text().decode()
    assert text.startswith("stdout: line 0\n")
    assert text.endswith("stdout: line 999\n")
    assert "lines dropped here" in text
    assert len(text) < 1200
