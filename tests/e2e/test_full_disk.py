"""Redis, store and agents on one disk that becomes full: nothing fails for it, and work goes on when there is room."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from minio.error import MinioException
from urllib3.exceptions import HTTPError

from tests.e2e.conftest import FUNCTIONS, Up, start, stop
from tests.support import wait_until
from tests.support.disk import CannotMount, Disk, mounted
from tidemill import Client
from tidemill.errors import ServiceUnavailable

TROUBLE = (MinioException, HTTPError)  # a store that starts again refuses connections


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    try:
        (tmp_path / "disk").mkdir()
        with mounted(tmp_path / "disk") as disk:
            yield disk
    except CannotMount as error:
        pytest.skip(str(error))


@pytest.fixture
def up(disk: Disk, up_env: dict[str, str]) -> Iterator[Up]:
    temporary = disk.path / "tmp"
    temporary.mkdir()
    system = start(disk.path / "state", {**up_env, "TMPDIR": str(temporary)})
    try:
        system.client.deploy(FUNCTIONS / "slow")
        yield system
    finally:
        stop(system)


def put(up: Up, name: str) -> bytes:
    body = name.encode() * 300
    up.s3.put_object("inbox", f"slow/{name}", io.BytesIO(body), len(body))
    return body


def taken(up: Up, name: str) -> bool:
    """Whether the store takes a file."""
    try:
        put(up, name)
    except TROUBLE:
        return False
    return True


def no_call(client: Client) -> str:
    """Why a call is not accepted; empty when it is."""
    try:
        client.submit("slow", b"call")
    except ServiceUnavailable as error:
        return str(error)
    return ""


def result(up: Up, name: str) -> str | None:
    try:
        return str(json.loads(up.read("outbox", f"slow/{name}/result.json"))["sha256"])
    except TROUBLE:
        return None


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_full_disk_refuses_new_work_with_the_reason_and_the_rest_goes_on_when_there_is_room(
    up: Up, disk: Disk
) -> None:
    put(up, "before")
    wait_until(lambda: result(up, "before"), 60)
    bodies = {f"job-{number}": put(up, f"job-{number}") for number in range(12)}
    wait_until(lambda: result(up, "job-0"), 60)

    disk.fill()
    wait_until(lambda: not taken(up, "too-late"), 60)
    with Client(up.status["url"], up.status["token"], retry_s=0) as client:
        assert wait_until(lambda: no_call(client), 30)

    disk.clear()
    wait_until(lambda: all(result(up, name) for name in bodies), 120)
    assert {name: result(up, name) for name in bodies} == {
        name: hashlib.sha256(body).hexdigest() for name, body in bodies.items()
    }
    wait_until(lambda: taken(up, "after"), 30)
    wait_until(lambda: result(up, "after"), 60)
    wait_until(lambda: {job.state for job in up.client.jobs()} == {"succeeded"}, 60)
