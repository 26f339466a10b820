"""One disk at a time becomes full below a real system: what waits says why, costs no attempt, and goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.faults.load import IN
from tests.faults.system import System
from tests.support import wait_until
from tidemill.errors import ServiceUnavailable
from tidemill.models import Job, JobState

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    system = System(tmp_path, 1, disks=True)
    try:
        if len(system.disks) < 3:
            pytest.skip("disks that become full need the right to mount")
        system.start()
        yield system
    finally:
        left = system.close()
    assert left == []


def put(system: System, name: str, seconds: float = 0.0) -> None:
    body = json.dumps({"n": 1, "want": "many", "seconds": seconds}).encode()
    system.record.store.put(IN, f"in/put/{name}.json", body)


def job(system: System, name: str) -> Job | None:
    return next((job for job in system.ledger.jobs(limit=100).jobs if f"/{name}." in job.input.key), None)


def state(system: System, name: str) -> JobState | None:
    found = job(system, name)
    return found.state if found is not None else None


def call(system: System) -> httpx.Response:
    files = {"file": ("a.json", json.dumps({"n": 2, "want": "small", "seconds": 0.0}).encode(), "application/json")}
    headers = {"Authorization": f"Bearer {system.token}"}
    url = f"{system.urls[0]}/api/v1/functions/call/jobs"
    return httpx.post(url, headers=headers, files=files, timeout=30, trust_env=False)


def test_jobs_wait_uncounted_with_the_reason_while_their_agents_have_no_room(system: System) -> None:
    put(system, "before")
    wait_until(lambda: state(system, "before") is JobState.succeeded, 60)
    system.disks["agent"].fill()
    put(system, "full")

    def said() -> bool:
        found = job(system, "full")
        assert found is not None
        assert found.attempt <= 1, "claimed once at a time, and never counted"
        return any("trouble on" in event.detail and "[Errno 28]" in event.detail for event in found.history)

    wait_until(lambda: job(system, "full") is not None, 30)
    wait_until(said, 60)
    system.disks["agent"].clear()
    wait_until(lambda: state(system, "full") is JobState.succeeded, 60)
    done = job(system, "full")
    assert done is not None
    assert done.attempt == 1


def test_what_runs_while_the_store_is_full_is_kept_and_committed_when_there_is_room(system: System) -> None:
    put(system, "running", seconds=4.0)
    wait_until(lambda: state(system, "running") is JobState.running, 60)
    system.disks["store"].fill()

    def full() -> bool:
        try:
            put(system, "too-late")
        except ServiceUnavailable:
            return True
        return False

    wait_until(full, 60)
    refused = wait_until(lambda: answer if (answer := call(system)).status_code == 503 else None, 60)
    assert "store" in refused.json()["detail"], refused.text
    kept = job(system, "running")
    assert kept is not None
    assert kept.attempt == 1
    assert not kept.state.terminal

    system.disks["store"].clear()
    system.store.kill()
    system.store.start()  # its index takes no write until then
    wait_until(lambda: state(system, "running") is JobState.succeeded, 60)
    done = job(system, "running")
    assert done is not None
    assert done.attempt == 1
    wait_until(lambda: call(system).status_code == 202, 30)


def test_a_redis_without_room_refuses_with_its_reason_and_goes_on_by_itself(system: System) -> None:
    put(system, "running", seconds=4.0)
    wait_until(lambda: state(system, "running") is JobState.running, 60)
    system.disks["redis"].fill()
    refused = wait_until(lambda: answer if (answer := call(system)).status_code == 503 else None, 60)
    assert "MISCONF" in refused.json()["detail"], refused.text

    system.disks["redis"].clear()
    wait_until(lambda: call(system).status_code == 202, 30)
    wait_until(lambda: state(system, "running") is JobState.succeeded, 60)
