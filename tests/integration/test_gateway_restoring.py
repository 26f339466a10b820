"""While Redis is being filled again from the bucket the gateway says so, and never that something does not exist."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
import redis

from tests.support import S3, wait_until
from tests.support.gateway import Lab, free_socket, run_gateway
from tidemill.models import EpochRecord, JobError
from tidemill_gateway.lookup import Lookup

SPEC: dict[str, object] = {"name": "echo", "handler": "work:run"}


@pytest.fixture
def lab(s3: S3, redis_url: str, bucket: str) -> Iterator[Lab]:
    with free_socket() as sock, run_gateway(s3, redis_url, bucket, sock) as found:
        found.deploy(SPEC).raise_for_status()
        yield found


@pytest.fixture
def lose(lab: Lab, redis_url: str):
    """Redis forgets everything, and a new epoch begins, as placement does it before it rebuilds."""

    def flush() -> None:
        with redis.Redis.from_url(redis_url) as client:
            client.flushdb()
        assert lab.ledger.begin_epoch(2, 0)

    return flush


def submit(lab: Lab) -> httpx.Response:
    return lab.http.post("/api/v1/functions/echo/jobs", files={"file": ("a.txt", b"x")})


def test_a_function_that_only_the_bucket_knows_takes_calls(lab: Lab, lose) -> None:
    lose()
    assert lab.http.get("/api/v1/functions/echo").status_code == 200
    assert submit(lab).status_code == 202


def test_a_function_that_nobody_deployed_is_unknown_at_any_time(lab: Lab, lose) -> None:
    lose()
    answer = lab.http.post("/api/v1/functions/nosuch/jobs", files={"file": ("a.txt", b"x")})
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_a_deleted_function_stays_deleted(lab: Lab, lose) -> None:
    lab.http.delete("/api/v1/functions/echo").raise_for_status()
    lose()
    assert submit(lab).status_code == 404


def test_a_finished_job_is_shown_from_its_manifest(lab: Lab, lose) -> None:
    job_id = submit(lab).json()["id"]
    lab.end(job_id)
    lose()
    assert lab.http.get(f"/api/v1/jobs/{job_id}").json()["state"] == "succeeded"


def test_a_waiting_job_is_to_be_asked_for_again(lab: Lab, lose) -> None:
    job_id = submit(lab).json()["id"]
    lose()
    for answer in (lab.http.get(f"/api/v1/jobs/{job_id}"), lab.http.post(f"/api/v1/jobs/{job_id}/cancel")):
        assert (answer.status_code, answer.json()["code"]) == (503, "ledger_unavailable")
    assert "restored" in answer.json()["detail"]


def test_an_unknown_job_is_not_found_once_all_has_come_back(lab: Lab, lose) -> None:
    lose()
    unknown = "0" * 32
    assert lab.http.get(f"/api/v1/jobs/{unknown}").status_code == 503
    for sequence in range(1, 4):
        assert lab.ledger.advance(2, sequence)
    assert lab.http.get(f"/api/v1/jobs/{unknown}").status_code == 404


def test_in_an_installation_that_never_lost_anything_an_unknown_job_is_not_found(lab: Lab) -> None:
    assert lab.http.get(f"/api/v1/jobs/{'0' * 32}").status_code == 404


def test_a_call_that_the_bucket_remembers_is_never_unknown(lab: Lab, redis_url: str) -> None:
    # A copy of Redis of some seconds ago was put back: same epoch, and nobody has noticed.
    job_id = submit(lab).json()["id"]
    with redis.Redis.from_url(redis_url) as client:
        client.flushdb()
    assert lab.ledger.begin_epoch(1, 5)
    answer = lab.http.post(f"/api/v1/jobs/{job_id}/retry")
    assert (answer.status_code, answer.json()["code"]) == (503, "ledger_unavailable")


def test_a_ledger_older_than_the_bucket_knows_of_no_job_for_certain(lab: Lab) -> None:
    lab.services.record.write_epoch(EpochRecord(epoch=1, sequence=9, written_at=1.0), None)
    assert lab.http.get(f"/api/v1/jobs/{'0' * 32}").status_code == 503


def test_two_functions_may_not_share_a_trigger_though_redis_has_lost_the_first(lab: Lab, bucket: str, lose) -> None:
    trigger = [{"bucket": f"{bucket}-in", "prefix": "in/"}]
    lab.deploy({"name": "first", "handler": "work:run", "trigger": trigger}).raise_for_status()
    lose()
    answer = lab.deploy({"name": "second", "handler": "work:run", "trigger": trigger})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_spec")
    assert "first" in answer.json()["detail"]


@pytest.fixture
def restore(lab: Lab, redis_url: str):
    """Redis comes back as it was when `copy` was called; a new epoch begins."""
    with redis.Redis.from_url(redis_url) as client:

        class Copy:
            def take(self) -> None:
                self.keys = {key: client.dump(key) for key in client.keys("*")}

            def put_back(self) -> None:
                client.flushdb()
                for key, dumped in self.keys.items():
                    client.restore(key, 0, dumped)
                assert lab.ledger.begin_epoch(2, 0)

        yield Copy()


def test_after_an_older_copy_came_back_the_newest_finished_generation_is_shown(lab: Lab, restore) -> None:
    job_id = submit(lab).json()["id"]
    lab.end(job_id, error=JobError(code="function_failed", message="the first"))
    restore.take()
    assert lab.http.post(f"/api/v1/jobs/{job_id}/retry").status_code == 202
    lab.end(job_id, result=b"2")
    restore.put_back()
    old = lab.ledger.job(job_id)
    assert old is not None and (old.generation, old.state) == (1, "failed")

    def shown() -> tuple[int, str]:
        job = lab.http.get(f"/api/v1/jobs/{job_id}").json()
        return job["generation"], job["state"]

    wait_until(lambda: shown() == (2, "succeeded"), 5)
    assert lab.http.get(f"/api/v1/jobs/{job_id}/outputs", params={"name": "result.json"}).content == b"2"
    again = lab.http.post(f"/api/v1/jobs/{job_id}/retry")
    assert (again.status_code, again.json()["generation"]) == (202, 3)
    assert shown() == (3, "queued")


def test_after_an_older_copy_came_back_an_accepted_retry_is_shown_as_waiting(lab: Lab, restore) -> None:
    job_id = submit(lab).json()["id"]
    lab.end(job_id, error=JobError(code="function_failed", message="the first"))
    restore.take()
    lab.http.post(f"/api/v1/jobs/{job_id}/retry").raise_for_status()
    restore.put_back()
    wait_until(lambda: lab.http.get(f"/api/v1/jobs/{job_id}").json()["generation"] == 2, 5)
    assert lab.http.get(f"/api/v1/jobs/{job_id}").json()["state"] == "queued"


def test_in_the_first_epoch_the_bucket_is_not_asked_for_other_generations(lab: Lab) -> None:
    job_id = submit(lab).json()["id"]
    lab.end(job_id)
    manifest = lab.services.record.get_manifest("echo", job_id, 1)
    assert manifest is not None
    body = manifest.model_copy(update={"generation": 2}).model_dump_json().encode()
    lab.store.put(lab.services.record.bucket, f"manifests/echo/{job_id}.2.json", body)
    # A new one each time: the gateway's own remembers that it has looked.
    assert Lookup(lab.ledger, lab.services.record).find(job_id).generation == 1
    assert lab.ledger.begin_epoch(2, 0)
    assert Lookup(lab.ledger, lab.services.record).find(job_id).generation == 2
