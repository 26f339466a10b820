"""What the HTTP API refuses, and what it says then."""

import httpx
import pytest
import redis

from tests.support import S3, wait_until
from tests.support.gateway import ECHO, TOKEN, Lab, free_socket, run_gateway, submit


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
    submit(lab)
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
        lab.deploy(ECHO).raise_for_status()
        answer = submit(lab, b"x" * (2**20 + 5000))

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
            refused = wait_until(lambda: answer if (answer := submit(lab)).status_code == 503 else None, 5)
        finally:
            connection.config_set("maxmemory", before)

    assert refused.json()["code"] == "ledger_full"
    assert "memory" in refused.json()["detail"]
    assert refused.headers["retry-after"] == "1"
