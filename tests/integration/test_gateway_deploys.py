"""The HTTP API takes functions, or says what is wrong with them."""

import json

import pytest

from tests.support import S3
from tests.support.gateway import ECHO, Lab, archive, free_socket, run_gateway


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
            files = {"spec": (None, json.dumps({**ECHO, "name": "bad"})), "code": ("c", code)}
            assert lab.http.put("/api/v1/functions/bad", files=files).status_code == 422


def test_overlapping_triggers_that_are_both_shared_start_both(lab: Lab) -> None:
    for name in ("one", "two"):
        trigger = {"bucket": "shared-in", "prefix": "s/", "shared": True}
        lab.deploy({"name": name, "handler": "work:run", "trigger": trigger}).raise_for_status()


def test_buckets_of_somebody_else_are_refused(s3: S3, redis_url: str, bucket: str) -> None:
    with free_socket() as sock, run_gateway(s3, redis_url, bucket, sock, buckets=("mine-*",)) as lab:
        refused = lab.deploy({"name": "echo", "handler": "work:run", "trigger": {"bucket": "other-in"}})
        upload = lab.http.post("/api/v1/uploads", json={"bucket": "other-in", "key": "k"})
        lab.deploy(ECHO).raise_for_status()
        named = lab.http.post("/api/v1/functions/echo/jobs", json={"bucket": "other-in", "key": "k"})

    for answer in (refused, upload, named):
        assert (answer.status_code, answer.json()["code"]) == (403, "not_allowed")
