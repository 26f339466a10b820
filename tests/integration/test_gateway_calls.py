"""The HTTP API over a real Valkey and a real SeaweedFS: calls, results, refusals."""

import json
import threading
from collections.abc import Iterator

import httpx
import pytest
import redis

from tests.support import S3, wait_until
from tests.support.gateway import AGENT, TOKEN, Lab, archive, free_socket, run_gateway
from tidemill.errors import StoreUnavailable
from tidemill.ledger.api import AgentReport
from tidemill.models import JobError, Placement, RequestRecord
from tidemill.record.ending import End, finish
from tidemill_placement.rebuild import rebuild

_SPEC: dict[str, object] = {
    "name": "echo",
    "handler": "work:run",
    "params": {"top_k": {"type": "integer", "default": 3, "minimum": 1}},
}


@pytest.fixture
def lab(s3: S3, redis_url: str, bucket: str) -> Iterator[Lab]:
    with free_socket() as sock, run_gateway(s3, redis_url, bucket, sock) as found:
        found.deploy(_SPEC).raise_for_status()
        yield found


def _submit(lab: Lab, content: bytes = b"x", key: str | None = None, params: object = None) -> httpx.Response:
    headers = {"Idempotency-Key": key} if key else {}
    files = {"file": ("a b.txt", content, "text/plain"), "params": (None, json.dumps(params or {}))}
    return lab.http.post("/api/v1/functions/echo/jobs", files=files, headers=headers)


def test_a_file_becomes_a_durable_job_with_defaults_filled_in(lab: Lab) -> None:
    answer = _submit(lab, b"hello")

    assert answer.status_code == 202
    job = answer.json()
    assert (job["state"], job["params"], job["input"]["name"]) == ("queued", {"top_k": 3}, "a b.txt")
    assert lab.store.get(job["input"]["bucket"], job["input"]["key"]) == b"hello"
    assert lab.services.record.get_request("echo", job["id"], 1) is not None
    assert lab.http.get(f"/api/v1/jobs/{job['id']}").json()["id"] == job["id"]


def test_the_same_key_and_content_is_the_same_job_and_another_content_a_conflict(lab: Lab) -> None:
    first = _submit(lab, b"one", key="k")
    again = _submit(lab, b"one", key="k")
    other = _submit(lab, b"two", key="k")
    other_params = _submit(lab, b"one", key="k", params={"top_k": 4})

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
    threads = [
        threading.Thread(target=lambda: ids.append(_submit(lab, b"one", key="k").json()["id"])) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(ids) == 6
    assert len(set(ids)) == 1
    assert len(lab.jobs()) == 1


def test_without_a_key_each_call_is_a_job(lab: Lab) -> None:
    assert _submit(lab).json()["id"] != _submit(lab).json()["id"]


def test_several_files_are_several_jobs(lab: Lab) -> None:
    files = [("file", (f"{n}.txt", str(n).encode())) for n in range(3)]
    answer = lab.http.post("/api/v1/functions/echo/jobs", files=files, headers={"Idempotency-Key": "many"})

    jobs = answer.json()["jobs"]
    assert [job["input"]["name"] for job in jobs] == ["0.txt", "1.txt", "2.txt"]
    assert len({job["id"] for job in jobs}) == 3


def test_a_large_payload_goes_through_in_parts(lab: Lab) -> None:
    content = bytes(range(256)) * (24 * 4096)  # 24 MiB
    job = _submit(lab, content).json()

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
    job_id = _submit(lab).json()["id"]
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
    job_id = _submit(lab).json()["id"]
    job = lab.http.post(f"/api/v1/jobs/{job_id}/cancel").json()

    assert (job["state"], job["error"]["code"]) == ("cancelled", "cancelled")
    assert lab.services.record.get_manifest("echo", job_id, 1) is not None
    assert lab.http.post(f"/api/v1/jobs/{job_id}/cancel").json()["state"] == "cancelled"


def test_retry_starts_the_next_generation_of_a_job_that_is_over(lab: Lab) -> None:
    job_id = _submit(lab).json()["id"]
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
    job_id = _submit(lab).json()["id"]
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
    other = _submit(lab, b"y").json()["id"]
    lab.end(other, error=fault)
    assert _retry(lab, other, "k1") == (202, 2), "a key belongs to its job"


def test_of_two_retries_at_once_with_different_keys_one_is_refused(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = _submit(lab).json()["id"]
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
    job_id = _submit(lab).json()["id"]
    lab.end(job_id)
    with redis.Redis.from_url(redis_url) as connection:
        connection.flushdb()
    lab.ledger.begin_epoch(2, 0)
    record = lab.services.record.get_function("echo")
    assert record is not None
    lab.ledger.put_function(record)

    assert lab.http.get(f"/api/v1/jobs/{job_id}").json()["state"] == "succeeded"


def test_events_tell_the_life_of_a_job_and_resume_after_the_last_one_seen(lab: Lab) -> None:
    job_id = _submit(lab).json()["id"]
    seen: list[tuple[str, str, str]] = []

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
    assert [state for event, _, state in seen if event == "state"] == ["released", "running", "succeeded"]
    assert (seen[-1][0], seen[-1][2]) == ("job", "succeeded")
    first = seen[1]
    seen.clear()
    listen(first[1])
    assert [state for event, _, state in seen if event == "state"] == ["running", "succeeded"]


def test_log_lines_come_live_as_json_and_as_text(lab: Lab) -> None:
    job_id = _submit(lab).json()["id"]
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


def test_without_the_right_token_only_healthz_answers(lab: Lab, subtests: pytest.Subtests) -> None:
    for token in (None, "", "Bearer wrong", f"Bearer {TOKEN}x", "Basic abc"):
        with subtests.test(token=token):
            _refused({"Authorization": token} if token is not None else {}, lab)
    assert lab.jobs() == []


def _refused(headers: dict[str, str], lab: Lab) -> None:
    with httpx.Client(base_url=lab.url, headers=headers) as http:
        assert http.get("/healthz").json() == {"status": "ok"}
        for path in ("/", "/readyz", "/metrics", "/openapi.json", "/api/v1/jobs", "/nowhere"):
            assert http.get(path).status_code == 401
        refused = http.post("/api/v1/functions/echo/jobs", files={"file": ("x", b"x")})
        document = refused.json()
        assert (refused.status_code, document["code"]) == (401, "not_allowed")
        assert "tidemill env" in document["hint"]
        assert document["request_id"] == refused.headers["x-request-id"]


def test_readyz_metrics_and_the_description_answer_with_the_token(lab: Lab) -> None:
    assert lab.http.get("/readyz").json()["checks"]["intake"] == "starting"
    lab.services.start()
    assert lab.http.get("/readyz").json()["ready"] is True
    _submit(lab)
    assert 'tidemill_jobs{function="echo",state="queued"} 1.0' in lab.http.get("/metrics").text
    paths = lab.http.get("/openapi.json").json()["paths"]
    assert {"/api/v1/jobs/{job_id}", "/api/v1/functions/{name}/run", "/hooks/s3/{store}"} <= paths.keys()


_WRONG: list[tuple[str, str, dict[str, object], int]] = [
    ("POST", "/api/v1/functions/none/jobs", {"files": {"file": ("x", b"x")}}, 404),
    ("POST", "/api/v1/functions/echo/jobs", {"content": b"{"}, 422),
    ("POST", "/api/v1/functions/echo/jobs", {"content": b"\xff" * 10}, 422),
    ("POST", "/api/v1/functions/echo/jobs", {"json": {"bucket": 5, "key": "k"}}, 422),
    ("POST", "/api/v1/functions/echo/jobs", {"json": {"bucket": "b", "key": "k", "x": 1}}, 422),
    ("POST", "/api/v1/functions/echo/jobs", {"json": {"bucket": "bucket", "key": "k", "params": []}}, 422),
    ("POST", "/api/v1/functions/echo/jobs", {"json": {"bucket": "\n\x12 😀", "key": "k"}}, 422),
    ("POST", "/api/v1/functions/echo/jobs", {"files": {"params": (None, "{}")}}, 422),
    ("POST", "/api/v1/functions/echo/jobs", {"files": {"file": ("x", b"x"), "params": (None, "[1]")}}, 422),
    (
        "POST",
        "/api/v1/functions/echo/jobs",
        {"content": b"junk", "headers": {"Content-Type": "multipart/form-data"}},
        400,
    ),
    (
        "POST",
        "/api/v1/functions/echo/jobs",
        {"content": b"junk", "headers": {"Content-Type": "multipart/form-data; boundary=x"}},
        400,
    ),
    ("POST", "/api/v1/functions/echo/run", {"params": {"timeout": "nan"}, "files": {"file": ("x", b"x")}}, 422),
    ("GET", "/api/v1/jobs", {"params": {"limit": "0"}}, 422),
    ("GET", "/api/v1/jobs", {"params": {"state": "lost"}}, 422),
    ("GET", "/api/v1/jobs", {"params": {"since": "yesterday"}}, 422),
    ("GET", "/api/v1/jobs", {"params": {"cursor": "junk"}}, 422),
    ("GET", "/api/v1/jobs/none", {}, 404),
    ("GET", f"/api/v1/jobs/{'0' * 32}", {}, 404),
    ("GET", f"/api/v1/jobs/{'0' * 32}/logs", {}, 404),
    ("POST", f"/api/v1/jobs/{'0' * 32}/cancel", {}, 404),
    ("POST", f"/api/v1/jobs/{'0' * 32}/retry", {}, 404),
    ("GET", "/api/v1/pools/none", {}, 404),
    ("DELETE", "/api/v1/functions/none", {}, 404),
    ("POST", "/api/v1/uploads", {"json": {"bucket": "no-such-bucket-here", "key": "k"}}, 404),
    ("POST", "/api/v1/uploads", {"json": {"bucket": "b"}}, 422),
    ("PATCH", "/api/v1/jobs", {}, 405),
    ("GET", "/nowhere", {}, 404),
]


def test_what_is_wrong_is_a_problem_document(lab: Lab, subtests: pytest.Subtests) -> None:
    for method, path, more, status in _WRONG:
        with subtests.test(method=method, path=path, more=more):
            answer = lab.http.request(method, path, **more)  # type: ignore[arg-type]

            assert answer.status_code == status, answer.text
            document = answer.json()
            assert answer.headers["content-type"] == "application/problem+json"
            assert {"code", "detail", "hint", "request_id", "status", "title", "type"} <= document.keys()
            assert document["hint"]


def test_an_unknown_function_names_the_nearest_one(lab: Lab) -> None:
    assert lab.http.get("/api/v1/functions/ecko").json()["hint"] == "Did you mean echo?"


def test_a_body_above_the_limit_is_refused(s3: S3, redis_url: str, bucket: str) -> None:
    with free_socket() as sock, run_gateway(s3, redis_url, bucket, sock, max_upload=1000) as lab:
        lab.deploy(_SPEC).raise_for_status()
        answer = _submit(lab, b"x" * (2**20 + 5000))

    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


def test_a_presigned_upload_puts_an_object_that_can_be_named(lab: Lab, bucket: str) -> None:
    lab.store.ensure_bucket(f"{bucket}-in")
    asked = {"bucket": f"{bucket}-in", "key": "in/ü x.txt", "content_type": "text/plain", "size": 5}
    given = lab.http.post("/api/v1/uploads", json=asked).json()
    httpx.request(given["method"], given["url"], headers=given["headers"], content=b"hello").raise_for_status()

    info = lab.store.head(f"{bucket}-in", "in/ü x.txt")
    assert info is not None
    assert (info.size, info.content_type) == (5, "text/plain")


def test_a_full_ledger_refuses_new_jobs_with_the_reason(lab: Lab, redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as connection:
        before = connection.config_get("maxmemory")["maxmemory"]
        connection.config_set("maxmemory", str(connection.info("memory")["used_memory"] + 100_000))
        try:
            refused = wait_until(lambda: answer if (answer := _submit(lab)).status_code == 503 else None, 5)
        finally:
            connection.config_set("maxmemory", before)

    assert refused.json()["code"] == "ledger_full"
    assert "memory" in refused.json()["detail"]
    assert refused.headers["retry-after"] == "1"


def test_pools_are_kept_drained_and_removed(lab: Lab) -> None:
    spec = {"name": "cpu", "slots": 2, "price": {"usd_per_hour": 0.1}, "agents": {"max": 3}}
    assert lab.http.put("/api/v1/pools/cpu", json=spec).json()["slots"] == 2
    assert lab.http.post("/api/v1/pools/cpu/drain").json()["draining"] is True
    assert lab.http.post("/api/v1/pools/cpu/resume").json()["draining"] is False
    assert [pool["name"] for pool in lab.http.get("/api/v1/pools").json()["pools"]] == ["cpu"]
    lab.ledger.set_scaling({"cpu": 2, "cpu/echo": 3})
    assert lab.http.get("/api/v1/scaling/cpu").json()["value"] == 2
    assert lab.http.get("/api/v1/scaling/cpu/echo").json()["value"] == 3
    assert lab.http.put("/api/v1/pools/cpu", json=spec | {"slotz": 1}).status_code == 422
    assert lab.http.delete("/api/v1/pools/cpu").status_code == 204
    assert lab.http.get("/api/v1/pools").json()["pools"] == []
    assert lab.services.record.pools() == []


def test_an_accepted_cancel_of_a_running_job_outlives_a_loss_of_redis(lab: Lab, redis_url: str) -> None:
    ledger, record = lab.ledger, lab.services.record
    job_id = _submit(lab).json()["id"]
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
    assert ledger.known([job_id]) == [True] and ledger.job(job_id) is None


def test_a_result_that_was_committed_before_the_rebuild_saw_the_cancel_counts(lab: Lab, redis_url: str) -> None:
    ledger, record = lab.ledger, lab.services.record
    job_id = _submit(lab).json()["id"]
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


def test_damaged_records_are_named_and_a_deploy_or_apply_mends_them(lab: Lab) -> None:
    assert lab.http.get("/api/v1/damaged").json() == {"damaged": []}
    lab.http.put("/api/v1/pools/cpu", json={"slots": 2}).raise_for_status()
    platform = lab.services.record.bucket
    request = f"requests/echo/{_submit(lab).json()['id']}.1.json"
    keys = ["functions/echo/current.json", "pools/cpu.json", request]
    for key in keys:
        lab.store.put(platform, key, b"{")
    lab.ledger.note_ignored(platform, request, "damaged")  # as a rebuild does that met it
    found = lab.http.get("/api/v1/damaged").json()["damaged"]
    assert [entry["key"] for entry in found] == keys
    assert all("is damaged" in entry["reason"] for entry in found)
    before = lab.ledger.function("echo")
    assert lab.deploy(_SPEC).status_code == 200
    assert lab.services.record.get_function("echo") == before == lab.ledger.function("echo")
    lab.http.put("/api/v1/pools/cpu", json={"slots": 2}).raise_for_status()
    lab.store.delete(platform, request)
    assert lab.http.get("/api/v1/damaged").json() == {"damaged": []}


def test_a_drained_pool_is_drained_in_the_bucket_before_the_ledger_hears_of_it(lab: Lab, redis_url: str) -> None:
    lab.http.put("/api/v1/pools/cpu", json={"slots": 2}).raise_for_status()
    assert lab.http.post("/api/v1/pools/cpu/drain").json()["draining"] is True
    redis.Redis.from_url(redis_url).flushdb()
    lab.ledger.begin_epoch(2, 1)
    [kept] = lab.services.record.pools()
    assert kept.draining
    assert lab.http.put("/api/v1/pools/cpu", json={"slots": 3}).json()["draining"] is True
    redis.Redis.from_url(redis_url).flushdb()
    lab.ledger.begin_epoch(3, 1)
    assert lab.http.post("/api/v1/pools/cpu/resume").json()["draining"] is False
    assert lab.http.post("/api/v1/pools/none/drain").status_code == 404


def test_a_drain_that_the_bucket_does_not_take_is_no_drain(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise StoreUnavailable("the store is away")

    lab.http.put("/api/v1/pools/cpu", json={"slots": 2}).raise_for_status()
    with monkeypatch.context() as patch:
        patch.setattr(lab.services.record, "drain_pool", away)
        assert lab.http.post("/api/v1/pools/cpu/drain").status_code == 503
    assert lab.http.get("/api/v1/pools/cpu").json()["draining"] is False


def test_agents_are_listed(lab: Lab) -> None:
    lab.ledger.heartbeat(AgentReport("pool-000001", "pool", 4))

    [agent] = lab.http.get("/api/v1/agents").json()["agents"]
    assert (agent["name"], agent["pool"], agent["slots"]) == ("pool-000001", "pool", 4)


def test_a_deploy_is_kept_and_repeated_is_the_same_revision(lab: Lab, bucket: str) -> None:
    spec = {
        "name": "ocr",
        "handler": "work:run",
        "trigger": {"bucket": f"{bucket}-in", "prefix": "ocr/"},
        "output": {"bucket": f"{bucket}-out", "prefix": "ocr/"},
    }
    first = lab.deploy(spec).json()
    again = lab.deploy(spec).json()
    other = lab.deploy(spec, archive({"work.py": b"def run(file, ctx): return 2\n"})).json()

    assert first == again
    assert (other["revision"] != first["revision"], other["places_since"]) == (True, first["places_since"])
    second = {"bucket": f"{bucket}-in", "prefix": "more/"}
    moved = lab.deploy({**spec, "trigger": [spec["trigger"], second]}).json()["places_since"]
    place = f"{bucket}-in/ocr/"
    assert moved[place] == first["places_since"][place], "a trigger beside a new one keeps its begin"
    assert moved[f"{bucket}-in/more/"] >= moved[place]
    assert {f"{bucket}-in", f"{bucket}-out"} <= set(lab.store.buckets())
    assert lab.ledger.function("ocr") == lab.services.record.get_function("ocr")
    assert [f["name"] for f in lab.http.get("/api/v1/functions").json()["functions"]] == ["echo", "ocr"]
    lab.http.delete("/api/v1/functions/ocr").raise_for_status()
    assert lab.http.get("/api/v1/functions/ocr").status_code == 404
    tombstone = lab.services.record.get_function("ocr")
    assert tombstone is not None
    assert tombstone.deleted_at is not None


_REFUSED: list[tuple[dict[str, object], str]] = [
    ({"trigger": {"bucket": "PLATFORM"}}, "platform bucket"),
    ({"output": {"bucket": "PLATFORM"}}, "platform bucket"),
    ({"trigger": {"bucket": "taken", "prefix": "a/b/"}}, "overlaps taken/a/ of first"),
    ({"trigger": {"bucket": "x-in"}, "output": {"bucket": "x-in", "prefix": "o/"}}, "lies under its own trigger"),
    ({"secrets": ["hub"]}, "secrets are not supported yet"),
    ({"image": "a/b:c"}, "an image needs a pool in a cluster"),
    ({"params": {"p": {"typ": "integer"}}}, "unknown keyword"),
    ({"handlr": "a:b"}, "handlr"),
    ({"environment": {"requirements": "req.txt"}}, "req.txt"),
]


def test_a_function_that_cannot_work_is_refused_with_the_remedy(
    lab: Lab, bucket: str, subtests: pytest.Subtests
) -> None:
    taken = {"name": "first", "handler": "work:run", "trigger": {"bucket": "taken", "prefix": "a/"}}
    lab.deploy(taken).raise_for_status()
    for change, said in _REFUSED:
        with subtests.test(change=change):
            text = json.dumps({"name": "wrong", "handler": "work:run", **change}).replace("PLATFORM", bucket)
            refused = lab.deploy(json.loads(text))

            assert (refused.status_code, refused.json()["code"]) == (422, "invalid_spec")
            assert said in refused.json()["detail"]
            assert lab.http.get("/api/v1/functions/wrong").status_code == 404


def test_a_bad_code_archive_is_refused(lab: Lab, subtests: pytest.Subtests) -> None:
    for code in (b"junk", b"", archive({"../out.py": b"x"}), archive({"/abs.py": b"x"})):
        with subtests.test(code=code[:8]):
            files = {"spec": (None, json.dumps({**_SPEC, "name": "bad"})), "code": ("c", code)}
            assert lab.http.put("/api/v1/functions/bad", files=files).status_code == 422


def test_overlapping_triggers_that_are_both_shared_start_both(lab: Lab) -> None:
    for name in ("one", "two"):
        trigger = {"bucket": "shared-in", "prefix": "s/", "shared": True}
        lab.deploy({"name": name, "handler": "work:run", "trigger": trigger}).raise_for_status()


def test_buckets_of_somebody_else_are_refused(s3: S3, redis_url: str, bucket: str) -> None:
    with free_socket() as sock, run_gateway(s3, redis_url, bucket, sock, buckets=("mine-*",)) as lab:
        refused = lab.deploy({"name": "echo", "handler": "work:run", "trigger": {"bucket": "other-in"}})
        upload = lab.http.post("/api/v1/uploads", json={"bucket": "other-in", "key": "k"})
        lab.deploy(_SPEC).raise_for_status()
        named = lab.http.post("/api/v1/functions/echo/jobs", json={"bucket": "other-in", "key": "k"})

    for answer in (refused, upload, named):
        assert (answer.status_code, answer.json()["code"]) == (403, "not_allowed")
