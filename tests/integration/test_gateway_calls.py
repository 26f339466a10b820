"""The HTTP API over a real Valkey and a real SeaweedFS: calls, results, retries, cancels."""

import json
import threading

import httpx
import pytest
import redis

from tests.support import wait_until
from tests.support.gateway import AGENT, Lab, submit
from tidemill.ledger.api import AgentReport
from tidemill.models import JobError, Placement, RequestRecord
from tidemill.record.ending import End, finish
from tidemill_placement.rebuild import rebuild


def test_a_file_becomes_a_durable_job_with_defaults_filled_in(lab: Lab) -> None:
    answer = submit(lab, b"hello")

    assert answer.status_code == 202
    job = answer.json()
    assert (job["state"], job["params"], job["input"]["name"]) == ("queued", {"top_k": 3}, "a b.txt")
    assert lab.store.get(job["input"]["bucket"], job["input"]["key"]) == b"hello"
    assert lab.services.record.get_request("echo", job["id"], 1) is not None
    assert lab.http.get(f"/api/v1/jobs/{job['id']}").json()["id"] == job["id"]


def test_the_same_key_and_content_is_the_same_job_and_another_content_a_conflict(lab: Lab) -> None:
    first = submit(lab, b"one", key="k")
    again = submit(lab, b"one", key="k")
    other = submit(lab, b"two", key="k")
    other_params = submit(lab, b"one", key="k", params={"top_k": 4})

    assert first.json()["id"] == again.json()["id"]
    assert (first.status_code, again.status_code) == (202, 202)
    assert (other.status_code, other_params.status_code) == (409, 409)
    assert other.headers["content-type"] == "application/problem+json"
    assert (other.json()["code"], other_params.json()["code"]) == ("idempotency_conflict",) * 2
    assert len(lab.jobs()) == 1
    stored = lab.http.get(f"/api/v1/jobs/{first.json()['id']}").json()["input"]
    assert lab.store.get(stored["bucket"], stored["key"]) == b"one"


def test_the_same_call_many_times_at_once_is_one_job(lab: Lab) -> None:
    ids: list[str] = []
    threads = [threading.Thread(target=lambda: ids.append(submit(lab, b"one", key="k").json()["id"])) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(ids) == 6
    assert len(set(ids)) == 1
    assert len(lab.jobs()) == 1


def test_without_a_key_each_call_is_a_job(lab: Lab) -> None:
    assert submit(lab).json()["id"] != submit(lab).json()["id"]


def test_several_files_are_several_jobs(lab: Lab) -> None:
    files = [("file", (f"{n}.txt", str(n).encode())) for n in range(3)]
    answer = lab.http.post("/api/v1/functions/echo/jobs", files=files, headers={"Idempotency-Key": "many"})

    jobs = answer.json()["jobs"]
    assert [job["input"]["name"] for job in jobs] == ["0.txt", "1.txt", "2.txt"]
    assert len({job["id"] for job in jobs}) == 3


def test_a_large_payload_goes_through_in_parts(lab: Lab) -> None:
    content = bytes(range(256)) * (24 * 4096)  # 24 MiB
    job = submit(lab, content).json()

    assert job["input"]["size"] == len(content)
    assert lab.store.get(job["input"]["bucket"], job["input"]["key"]) == content


def test_run_waits_for_the_end_and_brings_a_small_result_along(lab: Lab) -> None:
    answers: list[httpx.Response] = []
    caller = threading.Thread(
        target=lambda: answers.append(
            lab.http.post("/api/v1/functions/echo/run", params={"timeout": "20"}, files={"file": ("x", b"x")})
        )
    )
    caller.start()
    [job] = wait_until(lab.jobs)
    lab.end(str(job["id"]), b'{"text": "hi"}')
    caller.join(20)

    answer = answers[0].json()
    assert answers[0].status_code == 200
    assert (answer["job"]["state"], answer["result_inline"], answer["result"]) == ("succeeded", True, {"text": "hi"})


def test_run_that_takes_too_long_gives_the_job_and_cancels_nothing(lab: Lab) -> None:
    answer = lab.http.post("/api/v1/functions/echo/run", params={"timeout": "0.2"}, files={"file": ("x", b"x")})

    assert answer.status_code == 202
    assert answer.json()["job"]["state"] == "queued"


def test_results_are_listed_with_links_and_given_by_name(lab: Lab) -> None:
    job_id = submit(lab).json()["id"]
    lab.end(job_id, b'{"a": 1}')

    [output] = lab.http.get(f"/api/v1/jobs/{job_id}/outputs").json()["outputs"]
    assert output["name"] == "result.json"
    assert httpx.get(output["url"]).json() == {"a": 1}
    content = lab.http.get(f"/api/v1/jobs/{job_id}/outputs", params={"name": "result.json"})
    assert (content.json(), content.headers["content-type"]) == ({"a": 1}, "application/json")
    missing = lab.http.get(f"/api/v1/jobs/{job_id}/outputs", params={"name": "other"})
    assert (missing.status_code, "result.json" in missing.json()["hint"]) == (404, True)


def test_an_object_that_is_there_is_named_instead_of_sent(lab: Lab, bucket: str) -> None:
    lab.store.ensure_bucket(f"{bucket}-in")
    lab.store.put(f"{bucket}-in", "a+b%2F é.txt", b"content")
    body = {"bucket": f"{bucket}-in", "key": "a+b%2F é.txt", "params": {"top_k": 5}}
    answer = lab.http.post("/api/v1/functions/echo/jobs", json=body)

    assert answer.status_code == 202
    assert (answer.json()["input"]["key"], answer.json()["input"]["size"]) == ("a+b%2F é.txt", 7)
    missing = lab.http.post("/api/v1/functions/echo/jobs", json=body | {"key": "none"})
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
    nowhere = lab.http.post("/api/v1/functions/echo/jobs", json=body | {"bucket": "no-such-bucket-here"})
    assert nowhere.status_code == 404
    ours = lab.http.post("/api/v1/functions/echo/jobs", json=body | {"bucket": bucket})
    assert ours.status_code == 403


def test_cancel_ends_a_waiting_job_and_leaves_a_finished_one(lab: Lab) -> None:
    job_id = submit(lab).json()["id"]
    job = lab.http.post(f"/api/v1/jobs/{job_id}/cancel").json()

    assert (job["state"], job["error"]["code"]) == ("cancelled", "cancelled")
    assert lab.services.record.get_manifest("echo", job_id, 1) is not None
    assert lab.http.post(f"/api/v1/jobs/{job_id}/cancel").json()["state"] == "cancelled"


def test_retry_starts_the_next_generation_of_a_job_that_is_over(lab: Lab) -> None:
    job_id = submit(lab).json()["id"]
    early = lab.http.post(f"/api/v1/jobs/{job_id}/retry")
    lab.end(job_id, error=JobError(code="function_failed", message="no"))
    failed = lab.http.get("/api/v1/jobs", params={"state": "failed", "reason": "function_failed"}).json()["jobs"]
    answer = lab.http.post(f"/api/v1/jobs/{job_id}/retry")

    assert early.status_code == 409
    assert [job["id"] for job in failed] == [job_id]
    assert (answer.status_code, answer.json()["generation"], answer.json()["state"]) == (202, 2, "queued")
    lab.end(job_id)
    assert lab.http.get(f"/api/v1/jobs/{job_id}").json()["state"] == "succeeded"


def _retry(lab: Lab, job_id: str, key: str | None = None) -> tuple[int, int | None]:
    headers = {"Idempotency-Key": key} if key is not None else {}
    answer = lab.http.post(f"/api/v1/jobs/{job_id}/retry", headers=headers)
    return answer.status_code, answer.json().get("generation")


def test_a_retry_that_is_sent_again_with_its_key_starts_one_generation(lab: Lab) -> None:
    job_id = submit(lab).json()["id"]
    fault = JobError(code="function_failed", message="no")
    lab.end(job_id, error=fault)
    assert [_retry(lab, job_id, "k1"), _retry(lab, job_id, "k1")] == [(202, 2), (202, 2)]
    assert _retry(lab, job_id, "k2")[0] == 409, "another one, while it is not over"
    lab.end(job_id, error=fault)
    assert _retry(lab, job_id, "k1") == (202, 2), "its answer was lost for long"
    assert lab.http.get(f"/api/v1/jobs/{job_id}").json()["state"] == "failed"
    assert _retry(lab, job_id, "k2") == (202, 3)
    lab.end(job_id, error=fault)
    assert [_retry(lab, job_id, "k1"), _retry(lab, job_id, "k2")] == [(202, 3), (202, 3)]
    assert _retry(lab, job_id) == (202, 4)
    assert _retry(lab, job_id, "") == (422, None)
    other = submit(lab, b"y").json()["id"]
    lab.end(other, error=fault)
    assert _retry(lab, other, "k1") == (202, 2), "a key belongs to its job"


def test_of_two_retries_at_once_with_different_keys_one_is_refused(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = submit(lab).json()["id"]
    lab.end(job_id, error=JobError(code="function_failed", message="no"))
    put, both = lab.services.record.put_request, threading.Barrier(2)

    def together(request: RequestRecord) -> RequestRecord:
        both.wait(10)  # each has seen that the job is over
        return put(request)

    monkeypatch.setattr(lab.services.record, "put_request", together)
    answers: list[tuple[int, int | None]] = []
    threads = [threading.Thread(target=lambda key=key: answers.append(_retry(lab, job_id, key))) for key in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(status for status, _ in answers) == [202, 409]


def test_a_job_that_the_ledger_forgot_is_found_by_its_manifest(lab: Lab, redis_url: str) -> None:
    job_id = submit(lab).json()["id"]
    lab.end(job_id)
    with redis.Redis.from_url(redis_url) as connection:
        connection.flushdb()
    lab.ledger.begin_epoch(2, 0)
    record = lab.services.record.get_function("echo")
    assert record is not None
    lab.ledger.put_function(record)

    assert lab.http.get(f"/api/v1/jobs/{job_id}").json()["state"] == "succeeded"


def test_events_tell_the_life_of_a_job_and_resume_after_the_last_one_seen(lab: Lab) -> None:
    job_id = submit(lab).json()["id"]
    seen: list[tuple[str, str, str]] = []

    def states() -> list[str]:
        """Whether `committed` comes before the end depends on how quick the store is."""
        return [state for event, _, state in seen if event == "state" and state != "committed"]

    def listen(last: str | None = None) -> None:
        headers = {"Last-Event-ID": last} if last else {}
        with lab.http.stream("GET", f"/api/v1/jobs/{job_id}/events", headers=headers) as stream:
            position = event = ""
            for line in stream.iter_lines():
                name, _, value = line.partition(": ")
                position = value if name == "id" else position
                event = value if name == "event" else event
                if name == "data":
                    seen.append((event, position, json.loads(value)["state"]))

    listener = threading.Thread(target=listen)
    listener.start()
    wait_until(lambda: seen)
    lab.end(job_id)
    listener.join(20)

    assert (seen[0][0], seen[0][2]) == ("job", "queued")
    assert states() == ["released", "running", "succeeded"]
    assert (seen[-1][0], seen[-1][2]) == ("job", "succeeded")
    first = seen[1]
    seen.clear()
    listen(first[1])
    assert states() == ["running", "succeeded"]


def test_positions_that_the_ledger_cannot_have_are_refused_or_left_out(lab: Lab) -> None:
    job_id = submit(lab).json()["id"]
    for position in (f"{2**64}", f"1-{2**64}", "9" * 20, f"{2**64 - 1}-{2**64 - 1}"):
        answer = lab.http.get(f"/api/v1/jobs/{job_id}/logs", params={"after": position})
        assert (answer.status_code, answer.json().get("code")) == (422, "invalid_spec"), position
    lab.http.post(f"/api/v1/jobs/{job_id}/cancel").raise_for_status()
    whole = lab.http.get(f"/api/v1/jobs/{job_id}/events").text
    for position in (f"{2**64}", "9" * 20, "1-2-3", "-", "\u0663".encode(), f"{2**64 - 1}-{2**64 - 1}"):
        answer = lab.http.get(f"/api/v1/jobs/{job_id}/events", headers={"Last-Event-ID": position})
        assert answer.text == whole, position


def test_log_lines_come_live_as_json_and_as_text(lab: Lab) -> None:
    job_id = submit(lab).json()["id"]
    lab.ledger.heartbeat(AgentReport("pool-000001", "pool", 4))
    lab.ledger.release(job_id, "pool-000001", Placement(pool="pool"))
    [claim] = lab.ledger.claim("pool-000001", 1, 30.0)
    lab.ledger.append_log(claim.token, [("stdout", "one"), ("stderr", "två")])

    found = lab.http.get(f"/api/v1/jobs/{job_id}/logs", params={"format": "json"}).json()
    assert [(line["stream"], line["text"]) for line in found["lines"]] == [("stdout", "one"), ("stderr", "två")]
    assert lab.http.get(f"/api/v1/jobs/{job_id}/logs").text == "one\ntvå\n"
    follow = {"format": "json", "after": found["next"], "wait": "20"}
    later: list[httpx.Response] = []
    reader = threading.Thread(target=lambda: later.append(lab.http.get(f"/api/v1/jobs/{job_id}/logs", params=follow)))
    reader.start()
    lab.ledger.append_log(claim.token, [("log", "three")])
    reader.join(20)
    assert [line["text"] for line in later[0].json()["lines"]] == ["three"]
    assert later[0].json()["done"] is False

    # After the end the stored log is the whole one: the ledger's lacks what came too fast.
    stored = b"stdout: one\nstderr: tv\xc3\xa5\nlog: 3: \x0b\n"
    lab.services.record.put_log(claim.job.function, job_id, 1, stored)
    assert lab.ledger.give_back(claim.token, delay_s=0, count=False, why="")
    lab.end(job_id)
    assert lab.http.get(f"/api/v1/jobs/{job_id}/logs").text == "one\ntvå\n3: \x0b\n"
    whole = lab.http.get(f"/api/v1/jobs/{job_id}/logs", params={"format": "json"}).json()
    assert [(line["stream"], line["text"]) for line in whole["lines"]][-1] == ("log", "3: \x0b")
    assert (len(whole["lines"]), whole["done"]) == (3, True)
    rest = lab.http.get(f"/api/v1/jobs/{job_id}/logs", params={"format": "json", "after": found["next"]}).json()
    assert [line["text"] for line in rest["lines"]] == ["three"], "who follows goes on where they were"


def test_an_accepted_cancel_of_a_running_job_outlives_a_loss_of_redis(lab: Lab, redis_url: str) -> None:
    ledger, record = lab.ledger, lab.services.record
    job_id = submit(lab).json()["id"]
    ledger.heartbeat(AgentReport(AGENT, "pool", 4))
    assert ledger.release(job_id, AGENT, Placement(pool="pool"))
    [claim] = ledger.claim(AGENT, 1, 30.0)
    answer = lab.http.post(f"/api/v1/jobs/{job_id}/cancel")
    assert (answer.status_code, answer.json()["state"], answer.json()["cancel_requested"]) == (200, "running", True)
    assert list(record.cancels()) == [("echo", job_id, 1)]

    redis.Redis.from_url(redis_url).flushdb()
    ledger.begin_epoch(2, 0)
    assert rebuild(ledger, record).cancelled == 1
    ledger.advance(2, 3)
    job = lab.http.get(f"/api/v1/jobs/{job_id}").json()
    assert (job["state"], job["error"]["code"], job["params"]) == ("cancelled", "cancelled", {"top_k": 3})
    assert rebuild(ledger, record).cancelled == 0
    # The agent that never heard of it comes too late, and publishes nothing.
    late = End("succeeded", outputs=())
    assert finish(ledger, record, claim, ledger.function("echo"), late) is None
    shown = ledger.job(job_id)
    assert shown is not None and shown.state == "cancelled"


def test_a_result_that_was_committed_before_the_rebuild_saw_the_cancel_counts(lab: Lab, redis_url: str) -> None:
    ledger, record = lab.ledger, lab.services.record
    job_id = submit(lab).json()["id"]
    ledger.heartbeat(AgentReport(AGENT, "pool", 4))
    assert ledger.release(job_id, AGENT, Placement(pool="pool"))
    [claim] = ledger.claim(AGENT, 1, 30.0)
    lab.http.post(f"/api/v1/jobs/{job_id}/cancel").raise_for_status()
    manifest = finish(ledger, record, claim, ledger.function("echo"), End("succeeded"))
    assert manifest is not None and manifest.state == "succeeded"
    redis.Redis.from_url(redis_url).flushdb()
    ledger.begin_epoch(2, 0)
    assert rebuild(ledger, record).cancelled == 0
    assert record.get_manifest("echo", job_id, 1) == manifest
