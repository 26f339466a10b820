"""The way of a job through the real system: every way in, one result, the right bytes."""

from __future__ import annotations

import hashlib
import io
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.conftest import Up
from tests.support import wait_until
from tidemill.errors import Conflict, FunctionFailed, InvalidSpec, JobCancelled, NotAllowed, NotFound, WaitTimeout

NAMES = [
    "plain.txt",
    "a+b.txt",
    "a%2Fb.txt",
    "100%.txt",
    "with space.txt",
    " leading.txt",
    "quote'\".txt",
    "q?x=1&y;#z.txt",
    "umlaut-\u00e4.txt",
    "umlaut-a\u0308.txt",
    "日本語.txt",
    "emoji😀.bin",
    "new\nline.txt",
    "tab\there.txt",
    "-dash",
    "x" * 200,
    "/".join(["d"] * 60) + "/deep.txt",
    "~tilde.txt",
    "trailing.",
    "no-suffix",
    "$(touch x).txt",
    "<b>.html",
    "a,b=c;d.txt",
    "[brackets]{}.txt",
]


def test_hostile_names_in_three_ways_give_one_right_result_each(up: Up, tmp_path: Path) -> None:
    s3, client = up.s3, up.client
    wanted: dict[str, str] = {}
    files: list[tuple[str, str, bytes]] = []
    for number, name in enumerate(NAMES):
        for way in ("s3", "upload"):
            body = f"{way} {number} {name}".encode()
            files.append((way, f"{way}/{name}", body))
            wanted[f"digest/{way}/{name}"] = hashlib.sha256(body).hexdigest()

    def drop(file: tuple[str, str, bytes]) -> None:
        way, key, body = file
        if way == "s3":
            s3.put_object("inbox", f"digest/{key}", io.BytesIO(body), len(body))
        else:
            local = tmp_path / hashlib.sha256(key.encode()).hexdigest()
            local.write_bytes(body)
            client.upload(local, "inbox", f"digest/{key}")

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(drop, files))
        called = list(client.map("digest", [body for _, _, body in files], return_exceptions=True))
    assert [result["sha256"] for result in called] == [hashlib.sha256(body).hexdigest() for _, _, body in files]

    def results() -> dict[str, str]:
        found = {}
        for entry in s3.list_objects("outbox", prefix="digest/", recursive=True):
            if entry.object_name.endswith("/result.json") and entry.object_name.startswith(("digest/s3", "digest/up")):
                found[entry.object_name] = ""
        return found

    wait_until(lambda: len(results()) >= len(wanted), 120)
    got = {key.removesuffix("/result.json"): json.loads(up.read("outbox", key))["sha256"] for key in results()}
    assert got == wanted
    jobs = json.loads(up.cli("job", "list", "--json", "--function", "digest").stdout)
    by_key = [job["input"]["key"] for job in jobs if job["input"]["key"].startswith(("digest/s3/", "digest/upload/"))]
    assert sorted(by_key) == sorted(wanted), "one job each, however often it was seen"
    assert {job["state"] for job in jobs} == {"succeeded"}


def test_flower_lists_each_job_once_under_its_functions_name(up: Up) -> None:
    import httpx

    jobs = [up.client.submit("echo", f"flower {number}".encode()) for number in range(5)]
    for job in jobs:
        job.result(timeout=60)

    def rows() -> dict[str, dict[str, object]]:
        answer = httpx.get(up.status["flower"] + "/api/tasks", timeout=10)
        answer.raise_for_status()
        return answer.json()

    ids = {job.id for job in jobs}
    wait_until(lambda: {i: r["state"] for i, r in rows().items() if i in ids} == dict.fromkeys(ids, "SUCCESS"), 20)
    assert {rows()[i]["name"] for i in ids} == {"echo"}
    assert all(row["name"] != "tidemill.doorbell" for row in rows().values())


def test_run_gives_the_bytes_and_the_log(up: Up) -> None:
    client = up.client
    job = client.submit("echo", b"\x00\x01 body", key="echo-1")
    assert job.result(timeout=60).read() == b"\x00\x01 body"
    assert "got" in job.logs()
    assert client.submit("echo", b"\x00\x01 body", key="echo-1").id == job.id
    with pytest.raises(Conflict):
        client.submit("echo", b"another body", key="echo-1")


def test_a_wait_that_times_out_leaves_the_job_running(up: Up) -> None:
    job = up.client.submit("slow", b"x", params={"seconds": 2})
    with pytest.raises(WaitTimeout):
        job.result(timeout=0)
    assert job.result(timeout=60)["sha256"] == hashlib.sha256(b"x").hexdigest()


def test_a_cancelled_job_ends_soon_and_says_so(up: Up) -> None:
    job = up.client.submit("slow", b"to cancel", params={"seconds": 50})
    wait_until(lambda: job.refresh().state == "running", 30)
    job.cancel()
    with pytest.raises(JobCancelled):
        job.result(timeout=10)


def test_a_failure_brings_the_remote_traceback_and_the_log_tail(up: Up) -> None:
    with pytest.raises(FunctionFailed) as caught:
        up.client.run("faulty", b"x", params={"how": "raise"}, timeout=60)
    assert "ValueError: no such luck" in caught.value.traceback
    assert "about to raise" in caught.value.log_tail


@pytest.mark.parametrize(("how", "code"), [("permanent", None), ("exit", None), ("crash", None), ("hang", "timeout")])
def test_each_kind_of_failure_ends_the_job_with_a_reason(up: Up, how: str, code: str | None) -> None:
    job = up.client.submit("faulty", b"x", params={"how": how})
    with pytest.raises(FunctionFailed):
        job.result(timeout=90)
    error = job.refresh().data["error"]
    assert error["message"]
    assert code is None or error["code"] == code


@pytest.mark.parametrize("how", ["flood", "binary", "fine"])
def test_whatever_a_function_prints_its_result_arrives(up: Up, how: str) -> None:
    assert up.client.run("faulty", b"x", params={"how": how}, timeout=90) == {"how": how}


@pytest.mark.parametrize(("function", "said"), [("broken", "nothing_that_exists"), ("unready", "no device is ready")])
def test_waiting_jobs_of_a_handler_that_cannot_be_imported_fail_with_the_traceback(
    up: Up, function: str, said: str
) -> None:
    jobs = [up.client.submit(function, f"{number}".encode()) for number in range(3)]
    for job in jobs:
        with pytest.raises(FunctionFailed) as caught:
            job.result(timeout=90)
        assert said in caught.value.traceback


def test_a_function_that_looks_for_secrets_finds_none(up: Up) -> None:
    store = up.status["store"]
    redis = up.status["redis"]
    secrets = [up.status["token"], store["secret_key"], redis.split(":")[2].split("@")[0]]
    assert all(len(secret) > 8 for secret in secrets)
    found = up.client.run(
        "snoop",
        b"x",
        params={
            # In halves, so that the parameters themselves are not what is found.
            "secrets": secrets,
            "folders": [str(up.state_dir), str(Path(up.env["XDG_CONFIG_HOME"]))],
            "redis_port": int(redis.rsplit(":", 1)[1].split("/")[0]),
        },
        timeout=90,
    )
    assert found["found"] == []
    assert "NOAUTH" in found["redis"] or found["redis"] == ""


def test_an_input_that_is_overwritten_before_its_job_ran_is_superseded(up: Up) -> None:
    s3 = up.s3
    for body in (b"first", b"second, longer"):
        s3.put_object("inbox", "slow/changed.bin", io.BytesIO(body), len(body))

    def result() -> dict[str, object]:
        return json.loads(up.read("outbox", "slow/changed.bin/result.json"))

    def settled() -> bool:
        jobs = [job for job in up.client.jobs(function="slow") if job.data["input"]["key"] == "slow/changed.bin"]
        ended = [job for job in jobs if job.state in ("succeeded", "failed", "cancelled")]
        return bool(jobs) and len(ended) == len(jobs) and any(job.state == "succeeded" for job in jobs)

    wait_until(settled, 60)
    assert result()["sha256"] == hashlib.sha256(b"second, longer").hexdigest()


def test_wrong_calls_are_told_what_is_wrong(up: Up) -> None:
    from tidemill import Client

    with pytest.raises(NotFound):
        up.client.submit("nosuch", b"x")
    with pytest.raises(InvalidSpec):
        up.client.submit("digest", b"x", params={"salz": "x"})
    with pytest.raises(NotFound):
        up.client.submit("digest", {"bucket": "inbox", "key": "digest/not there"})
    with Client(up.status["url"], "wrong") as client, pytest.raises(NotAllowed):
        client.functions()
