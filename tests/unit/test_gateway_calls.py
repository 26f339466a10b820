"""Accept, cancel, retry and find in moments that are hard to meet with real servers; ledger and store are the twins."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

import pytest
from pydantic import SecretStr

from tidemill.errors import Conflict, LedgerUnavailable, NotFound, TidemillError
from tidemill.ledger.api import AgentReport, Claim, Ended
from tidemill.models import FunctionRecord, FunctionSpec, Job, JobError, JobState, Placement, RequestRecord
from tidemill.record import Record, keys
from tidemill.record.ending import End, finish
from tidemill.settings import GatewaySettings, IntakeSettings
from tidemill.store import ObjectInfo
from tidemill.testing import MemoryLedger, MemoryStore
from tidemill_gateway.calls import Call, Named, Payload
from tidemill_gateway.services import Services

AGENT = "pool-000001"
FAILED = End("failed", JobError(code="function_failed"))


class Versions(MemoryStore):
    """A store with an older version, `v1`, of one object."""

    older: ObjectInfo | None = None

    def head(self, bucket: str, key: str, version_id: str | None = None) -> ObjectInfo | None:
        return self.older if version_id == "v1" else super().head(bucket, key)


class Site:
    """A gateway's calls over twins, with the function `echo`, and an agent that is none."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.store = Versions(clock=lambda: self.now)
        self.record = Record(self.store)
        self.record.prepare()
        self.store.ensure_bucket("inbox")
        self.ledger = MemoryLedger()
        self.ledger.begin_epoch(1, 1)
        params = {"n": {"type": "integer", "default": 1}}
        spec = FunctionSpec.model_validate({"name": "echo", "handler": "w:f", "params": params})
        self.function = FunctionRecord(spec=spec, revision="r1", deployed_at=0.0, triggers_since=0.0)
        self.ledger.put_function(self.function)
        self.record.put_function(self.function)
        self.start()

    def start(self) -> None:
        """Begin with a gateway that remembers nothing."""
        self.services = Services(
            ledger=self.ledger,
            record=self.record,
            store=self.store,
            bell=lambda *_: "",
            gateway=GatewaySettings(token=SecretStr("t")),
            intake=IntakeSettings(),
        )
        self.owner = self.services.owner
        self.calls = self.services.calls

    def accept(self, content: bytes, key: str | None = None, params: Mapping[str, Any] | None = None) -> Job:
        payload = Payload("a.txt", io.BytesIO(content))
        return self.calls.accept(self.owner, Call("echo", payload, params or {}, key))

    def name(self, key: str | None = None, version_id: str | None = None) -> Job:
        return self.calls.accept(self.owner, Call("echo", Named("inbox", "a.txt", version_id), {}, key))

    def put_versions(self, older: bytes, newer: bytes) -> None:
        self.store.put("inbox", "a.txt", older)
        found = self.store.head("inbox", "a.txt")
        assert found is not None
        self.store.older = replace(found, version_id="v1")
        self.store.put("inbox", "a.txt", newer)

    def claim(self, job_id: str) -> Claim:
        self.ledger.heartbeat(AgentReport(AGENT, "pool", 4, state="ready"))
        assert self.ledger.release(job_id, AGENT, Placement(pool="pool", reason="the only one"))
        [claim] = self.ledger.claim(AGENT, 1, 30.0)
        return claim

    def end(self, job_id: str, end: End | None = None) -> None:
        assert finish(self.ledger, self.record, self.claim(job_id), self.function, end or End("succeeded")) is not None

    def remove(self, *names: str) -> None:
        """Do what retention does in its time."""
        for name in names:
            assert self.store.head("tidemill", name) is not None
            self.store.delete("tidemill", name)


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_key_whose_request_had_its_time_gives_no_result_of_another_content(site: Site, forgotten: bool) -> None:
    job = site.accept(b"first", key="k")
    site.end(job.id)
    site.remove(keys.request("echo", job.id, 1), job.input.key)
    if forgotten:
        site.ledger.expire(1e12)
    site.now += 1000
    again = site.accept(b"first", key="k")
    assert (again.id, again.state) == (job.id, "succeeded")
    for content, params in ((b"second", {}), (b"first", {"n": 2})):
        site.remove(keys.request("echo", job.id, 1))
        for _ in range(2):
            with pytest.raises(Conflict) as refused:
                site.accept(content, "k", params)
            assert refused.value.error_code == "idempotency_conflict"
            assert site.record.get_request("echo", job.id, 1) is None, "it is no request of this job"
        assert site.accept(b"first", key="k").id == job.id


def test_a_key_whose_request_had_its_time_gives_no_result_of_an_object_that_changed(site: Site) -> None:
    site.store.put("inbox", "a.txt", b"first")
    job = site.name("k")
    site.end(job.id)
    site.remove(keys.request("echo", job.id, 1))
    assert site.name("k").id == job.id
    site.remove(keys.request("echo", job.id, 1))
    site.store.put("inbox", "a.txt", b"second")
    with pytest.raises(Conflict) as refused:
        site.name("k")
    assert refused.value.error_code == "idempotency_conflict"
    site.now = 1000.0
    site.store.put("inbox", "a.txt", b"first")
    assert site.name("k").id == job.id, "the wrong call left nothing"


class Killed(Exception):
    """The gateway is killed."""


@pytest.mark.parametrize("named", [False, True])
def test_a_wrong_call_that_died_keeps_its_key_from_nobody(
    site: Site, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(content: bytes) -> Job:
        if not named:
            return site.accept(content, key="k")
        site.now = 1000.0
        site.store.put("inbox", "a.txt", content)
        return site.name("k")

    job = call(b"first")
    site.end(job.id)
    site.remove(keys.request("echo", job.id, 1))
    with monkeypatch.context() as dying:
        dying.setattr(site.services.submitter, "submit", lambda *_: _raise(Killed()))
        with pytest.raises(Killed):
            call(b"wrong")
    assert site.record.get_request("echo", job.id, 1) is not None
    for _ in range(2):
        for content in (b"wrong", b"other"):
            with pytest.raises(Conflict) as refused:
                call(content)
            assert refused.value.error_code == "idempotency_conflict"
        assert call(b"first").id == job.id


def test_a_right_call_beside_a_wrong_one_gets_its_job(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    job = site.accept(b"first", key="k")
    site.end(job.id)
    site.remove(keys.request("echo", job.id, 1))
    put, answers = site.record.put_request, []

    def meanwhile(request: RequestRecord) -> RequestRecord:
        monkeypatch.setattr(site.record, "put_request", put)
        stored = put(request)
        for content in (b"first", b"wrong"):
            try:
                answers.append(str(site.accept(content, "k").state))
            except Conflict as error:
                answers.append(error.error_code)
        assert site.record.get_request("echo", job.id, 1) == stored, "who made it takes it back"
        return stored

    monkeypatch.setattr(site.record, "put_request", meanwhile)
    with pytest.raises(Conflict):
        site.accept(b"wrong", "k")
    assert answers == ["succeeded", "idempotency_conflict"]
    assert site.record.get_request("echo", job.id, 1) is None


def test_a_right_call_that_meets_a_wrong_one_at_its_request_gets_its_job(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = site.accept(b"first", key="k")
    site.end(job.id)
    site.remove(keys.request("echo", job.id, 1))
    put = site.record.put_request

    def late(request: RequestRecord) -> RequestRecord:
        monkeypatch.setattr(site.record, "put_request", put)
        put(request.model_copy(update={"fingerprint": "other"}))  # of a wrong call, a moment before ours
        return put(request)

    monkeypatch.setattr(site.record, "put_request", late)
    assert site.accept(b"first", "k").id == job.id


def _raise(error: Exception) -> NoReturn:
    raise error


def _claimed_before(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent claims the job after a cancel has looked at it."""
    cancel = site.ledger.cancel

    def late(job_id: str, by: str, lease_s: float) -> tuple[JobState | None, Claim | None]:
        site.claim(job_id)
        return cancel(job_id, by, lease_s)

    monkeypatch.setattr(site.ledger, "cancel", late)


def test_a_cancel_of_a_job_that_was_claimed_just_then_is_kept_too(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    job = site.accept(b"x")
    _claimed_before(site, monkeypatch)
    answer = site.calls.cancel(site.owner, job.id)
    assert (answer.state, answer.cancel_requested) == ("running", True)
    wish = site.record.get_cancel("echo", job.id, 1)
    assert wish is not None
    assert (wish.by, wish.input, wish.params) == ("default", job.input, {"n": 1})


def test_a_cancel_that_ends_a_waiting_job_keeps_no_wish(site: Site) -> None:
    job = site.accept(b"x")
    assert site.calls.cancel(site.owner, job.id).state == "cancelled"
    assert list(site.record.cancels()) == []


def test_a_cancel_of_a_generation_that_only_the_bucket_knows_is_to_be_asked_for_again(site: Site) -> None:
    job = site.accept(b"x")
    site.end(job.id, FAILED)
    facts = {"job_id": job.id, "function": "echo", "generation": 2, "input": job.input, "created_at": 1.0}
    site.record.put_request(RequestRecord.model_validate(facts))
    site.ledger.begin_epoch(2, 5)
    site.start()
    assert site.calls.job(site.owner, job.id).generation == 2
    with pytest.raises(LedgerUnavailable, match=r"not in the ledger yet: .* retry .* restored"):
        site.calls.cancel(site.owner, job.id)
    site.services.reconciler.round()
    answer = site.calls.cancel(site.owner, job.id)
    assert (answer.generation, answer.state) == (2, "cancelled")


def test_a_committed_job_is_not_cancelled_any_more(site: Site) -> None:
    job = site.accept(b"x")
    assert site.ledger.commit(site.claim(job.id).token, Ended("succeeded"), 30.0)
    assert site.calls.cancel(site.owner, job.id).state == "committed"


def test_a_retry_of_a_job_whose_object_was_written_again_with_the_same_bytes_is_refused(site: Site) -> None:
    site.store.put("inbox", "a.txt", b"x")
    job = site.name()
    site.end(job.id, FAILED)
    site.now += 1000
    site.store.put("inbox", "a.txt", b"x")
    with pytest.raises(Conflict) as refused:
        site.calls.retry(site.owner, job.id)
    assert refused.value.error_code == "input_changed"


def test_a_payload_that_was_sent_again_can_be_retried(site: Site) -> None:
    job = site.accept(b"x", key="k")
    site.end(job.id, FAILED)
    site.remove(keys.request("echo", job.id, 1), job.input.key)
    site.now += 1000
    site.accept(b"x", key="k")
    assert site.calls.retry(site.owner, job.id).generation == 2


def test_a_job_is_found_by_its_newest_manifest_when_older_ones_had_their_time(site: Site) -> None:
    job = site.accept(b"x")
    for _ in range(10):
        site.end(job.id, FAILED)
        site.calls.retry(site.owner, job.id)
    site.end(job.id)
    site.ledger.expire(1e12)
    assert site.calls.job(site.owner, job.id).generation == 11
    site.remove(*(keys.manifest("echo", job.id, generation) for generation in range(1, 10)))
    found = site.calls.job(site.owner, job.id)
    assert (found.generation, found.state) == (11, "succeeded")
    site.remove(*(keys.manifest("echo", job.id, generation) for generation in (10, 11)))
    with pytest.raises(TidemillError):
        site.calls.job(site.owner, job.id)


def test_a_job_of_a_version_that_its_caller_named_is_of_that_version(site: Site) -> None:
    site.put_versions(b"old", b"newer")
    current, older = site.name("k1"), site.name("k2", "v1")
    assert (current.input.pinned, older.input.pinned, older.input.version_id) == (False, True, "v1")
    assert (current.input.size, older.input.size) == (5, 3)
    for job, said in ((current, False), (older, True)):
        body = site.store.get("tidemill", keys.request("echo", job.id, 1))
        assert ["pinned" in json.loads(text)["input"] for text in (body, job.model_dump_json())] == [said, said]
        site.end(job.id, FAILED)
    assert site.calls.retry(site.owner, older.id).input == older.input, "it is there, whatever the key shows now"
    site.end(older.id, FAILED)
    site.store.older = None
    with pytest.raises(NotFound) as refused:
        site.calls.retry(site.owner, older.id)
    assert refused.value.error_code == "input_gone"


def test_a_key_whose_request_had_its_time_gives_no_result_of_another_version(site: Site) -> None:
    site.put_versions(b"x", b"x")
    job = site.name("k")
    site.end(job.id)
    site.remove(keys.request("echo", job.id, 1))
    with pytest.raises(Conflict) as refused:
        site.name("k", "v1")
    assert refused.value.error_code == "idempotency_conflict"
