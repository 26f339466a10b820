"""/openapi.json says what the gateway answers.

Every answer of the other tests of the gateway is held against it too (`tests/support/described.py`).
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from tests.support import S3, run_valkey
from tests.support.gateway import ECHO, HOOK_SECRET, Lab, free_socket, run_gateway

_PROBLEM = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
_FORM = {"Content-Type": "multipart/form-data; boundary=x"}


def _filled(path: str, **values: str) -> str:
    return path.format(**{"name": "none", "job_id": "0" * 32, "pool": "none", "function": "none"} | values)


def _statuses(lab: Lab, **request: Any) -> dict[str, int]:
    """What each operation answers to a request with names that nobody has; the client compares it with the document."""
    values = {"store": lab.store.name, "secret": HOOK_SECRET}
    return {
        f"{method} {path}": lab.http.request(method, _filled(path, **values), **request).status_code
        for method, path, _ in lab.description.operations()
    }


def _declaring(lab: Lab, status: int) -> set[str]:
    found = lab.description.operations()
    return {f"{method} {path}" for method, path, operation in found if str(status) in operation["responses"]}


def test_the_served_description_is_the_one_that_the_answers_are_held_against(lab: Lab) -> None:
    assert lab.http.get("/openapi.json").json() == lab.description.document


def test_refusals_are_problem_documents_and_nothing_else(lab: Lab, subtests: pytest.Subtests) -> None:
    for method, path, operation in lab.description.operations():
        for status, answer in operation["responses"].items():
            if status >= "400" and (path, status) != ("/readyz", "503"):
                with subtests.test(method=method, path=path, status=status):
                    assert answer["content"] == _PROBLEM
    schemas = lab.description.document["components"]["schemas"]
    assert "HTTPValidationError" not in schemas
    refused = lab.http.get("/api/v1/jobs/none").json()
    assert set(schemas["Problem"]["required"]) == set(refused)


def test_what_needs_a_token_says_so_and_refuses_without_it(lab: Lab) -> None:
    document = lab.description.document
    assert document["security"] == [{"token": []}]
    assert {scheme["scheme"] for scheme in document["components"]["securitySchemes"].values()} == {"bearer"}
    found = lab.description.operations()
    own = {f"{method} {path}": operation["security"] for method, path, operation in found if "security" in operation}
    with lab.description.client(lab.url, {}) as anonymous:
        lab.http = anonymous
        answers = _statuses(lab)
    assert {name for name, status in answers.items() if status == 401} == _declaring(lab, 401)
    assert {name for name, status in answers.items() if status == 200 and "secret}" not in name} == {"GET /healthz"}
    assert {name for name, status in answers.items() if status == 403} == {
        name for name, security in own.items() if security == [{"hook_secret": []}]
    }
    assert {*_declaring(lab, 401), *own} == {f"{method} {path}" for method, path, _ in found}


def test_what_does_not_exist_is_not_found_where_the_description_says_so(lab: Lab) -> None:
    files = {"file": ("x", b"x")}
    answers = _statuses(lab, files=files)
    hooks = {name for name in answers if name.startswith(("GET /hooks", "POST /hooks"))}
    wanted = _declaring(lab, 404) - hooks - {"POST /api/v1/functions/{name}/replay", "POST /api/v1/uploads"}
    assert {name for name, status in answers.items() if status == 404} == wanted
    assert lab.http.post("/api/v1/functions/none/replay", json={}).status_code == 404
    assert lab.http.post("/api/v1/uploads", json={"bucket": "no-such-bucket", "key": "k"}).status_code == 404
    for method in ("GET", "POST"):
        assert lab.http.request(method, f"/hooks/s3/other/{HOOK_SECRET}").status_code == 404
        bearer = {"Authorization": f"Bearer {HOOK_SECRET}"}
        assert lab.http.request(method, "/hooks/s3/other", headers=bearer).status_code == 404


def test_a_wrong_query_body_or_form_is_refused_where_the_description_says_so(lab: Lab) -> None:
    query = {"limit": "x", "wait": "x", "timeout": "x"}
    answers = [_statuses(lab, params=query, content=b"{", headers={"Idempotency-Key": ""})]
    answers.append(_statuses(lab, content=b"junk", headers=_FORM))
    for status, found in zip((422, 400), answers, strict=True):
        assert {name for name, given in found.items() if given == status} == _declaring(lab, status)


def test_a_body_that_is_too_large_is_refused_wherever_it_is_sent(lab: Lab) -> None:
    answers = _statuses(lab, content=b"x" * (2**21 + 1))
    assert {name for name, status in answers.items() if status == 413} == _declaring(lab, 413)


def test_without_redis_the_answers_are_those_of_the_description(s3: S3, bucket: str, tmp_path: Path) -> None:
    with free_socket() as sock, contextlib.ExitStack() as stack:
        with run_valkey(tmp_path) as valkey:
            lab = stack.enter_context(run_gateway(s3, valkey.url, bucket, sock))
            lab.deploy(ECHO).raise_for_status()
        answers = _statuses(lab, files={"file": ("x", b"x")})
    assert 500 not in answers.values()
    away = {name for name, status in answers.items() if status == 503}
    assert {"GET /readyz", "GET /metrics", "POST /api/v1/functions/{name}/jobs", "GET /api/v1/jobs/{job_id}"} <= away


def test_a_wrong_method_is_told_all_methods_of_the_path(lab: Lab, subtests: pytest.Subtests) -> None:
    for path in lab.description.document["paths"]:
        for method in ("PATCH", "OPTIONS"):
            with subtests.test(method=method, path=path):
                target = _filled(path, store=lab.store.name, secret=HOOK_SECRET)
                headers = {"Authorization": f"Bearer {HOOK_SECRET}"} if path == "/hooks/s3/{store}" else {}
                answer = lab.http.request(method, target, headers=headers)
                assert answer.status_code == 405
                allowed = set(answer.headers["allow"].split(", "))
                assert allowed - {"HEAD"} == lab.description.methods(target)
