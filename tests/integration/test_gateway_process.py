"""`tidemill gateway` as a process: it starts before its servers, deploys, serves, and ends quickly."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.support import S3, wait_until
from tests.support.gateway import TOKEN
from tidemill.ledger import connect

_FUNCTION = "name: hello\nhandler: hello:run\ntrigger: {bucket: BUCKET-in}\n"


def _port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def _gateway(
    s3: S3, redis_url: str, bucket: str, log: Path, **more: str
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    port = _port()
    env = {
        "PATH": os.environ["PATH"],
        "TIDEMILL_REDIS__URL": redis_url,
        "TIDEMILL_STORE__ENDPOINT": s3.endpoint,
        "TIDEMILL_STORE__ACCESS_KEY": s3.access_key,
        "TIDEMILL_STORE__SECRET_KEY": s3.secret_key,
        "TIDEMILL_STORE__BUCKET": bucket,
        "TIDEMILL_GATEWAY__TOKEN": TOKEN,
        "TIDEMILL_GATEWAY__PORT": str(port),
        **more,
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tidemill.cli", "gateway"], env=env, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _answers(url: str, status: int = 200) -> bool:
    try:
        return httpx.get(url, headers={"Authorization": f"Bearer {TOKEN}"}).status_code == status
    except httpx.TransportError:
        return False


def test_it_deploys_the_functions_of_its_folder_serves_and_ends_on_sigterm(
    s3: S3, redis_url: str, bucket: str, tmp_path: Path
) -> None:
    for name, text in {"hello": _FUNCTION.replace("BUCKET", bucket), "broken": "name: 5\n"}.items():
        (tmp_path / "functions" / name).mkdir(parents=True)
        (tmp_path / "functions" / name / "function.yaml").write_text(text)
        (tmp_path / "functions" / name / "hello.py").write_text("def run(file, ctx): return 1\n")
    ledger = connect(redis_url)
    ledger.begin_epoch(1, 0)
    log = tmp_path / "log"
    with _gateway(s3, redis_url, bucket, log, TIDEMILL_FUNCTIONS_DIR=str(tmp_path / "functions")) as (process, url):
        wait_until(lambda: _answers(f"{url}/readyz"), 30)
        http = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {TOKEN}"})
        with http, http.stream("GET", "/healthz"):
            found = http.get("/api/v1/functions").json()["functions"]
            process.send_signal(signal.SIGTERM)
            process.wait(5)
    ledger.close()

    assert [function["name"] for function in found] == ["hello"]
    assert process.returncode == 0
    text = log.read_text()
    assert "function.refused" in text
    assert TOKEN not in text


def test_it_answers_healthz_and_says_what_it_waits_for_while_its_servers_are_away(
    s3: S3, redis_url: str, bucket: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    nowhere = f"redis://127.0.0.1:{_port()}/0"
    with _gateway(s3, nowhere, bucket, log) as (process, url):
        wait_until(lambda: _answers(f"{url}/healthz"), 30)
        assert _answers(f"{url}/readyz", 503)
        wait_until(lambda: "gateway.waits" in log.read_text(), 20)
        process.send_signal(signal.SIGTERM)
        process.wait(5)

    assert process.returncode == 0


def test_without_a_token_it_refuses_to_start(s3: S3, redis_url: str, bucket: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with _gateway(s3, redis_url, bucket, log, TIDEMILL_GATEWAY__TOKEN="") as (process, _):
        process.wait(30)

    assert process.returncode != 0
    assert "TIDEMILL_GATEWAY__TOKEN" in log.read_text()


def test_a_taken_port_is_said(s3: S3, redis_url: str, bucket: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with _gateway(s3, redis_url, bucket, log, TIDEMILL_GATEWAY__PORT=port) as (process, _):
            process.wait(30)

    assert process.returncode != 0
    assert "TIDEMILL_GATEWAY__PORT" in log.read_text()


def _resident(process: subprocess.Popen[bytes]) -> float:
    """MiB."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def test_its_memory_stays_flat_whatever_bodies_the_hook_gets(
    s3: S3, redis_url: str, bucket: str, tmp_path: Path
) -> None:
    size = 5 * 2**20
    record = {"eventName": "s3:ObjectCreated:Put", "s3": {"bucket": {"name": bucket}, "object": {"key": "k"}}}
    bodies = [
        b"[" + b",".join([b"{}"] * (size // 3)) + b"]",
        json.dumps({"Records": [record] * 30_000}).encode(),
        json.dumps({str(number): number for number in range(300_000)}).encode(),
        json.dumps({"Records": [{**record, "more": [f"q{number}" for number in range(400_000)]}]}).encode(),
        b"[" * size,
        b"\xff" * size,
        b"x" * (7 * 2**20),
    ]
    ledger = connect(redis_url)
    ledger.begin_epoch(1, 0)
    ledger.close()
    with _gateway(s3, redis_url, bucket, tmp_path / "log", TIDEMILL_GATEWAY__HOOK_SECRET="hook") as (process, url):
        wait_until(lambda: _answers(f"{url}/readyz"), 30)
        before = _resident(process)

        def send(number: int) -> int:
            try:
                return httpx.post(f"{url}/hooks/s3/local/hook", content=bodies[number % 7], timeout=30).status_code
            except httpx.WriteError:  # of the one that is too large, and cut off
                return 200 if number % 7 == 6 else 0

        with ThreadPoolExecutor(8) as senders:
            answers = set(senders.map(send, range(140)))
        wait_until(lambda: _resident(process) < before + 80, 20)

    assert answers == {200}
