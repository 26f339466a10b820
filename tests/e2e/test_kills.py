"""Whatever process is killed with SIGKILL while files run: all come out, once each, without help."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import FUNCTIONS, Up, start, stop
from tests.support import wait_until

FILES = 24


def drop(up: Up, prefix: str, count: int) -> dict[str, str]:
    """Put files; give the digest that each result must have, by the result's key."""
    wanted = {}
    for number in range(count):
        body = f"{prefix} {number}".encode()
        up.s3.put_object("inbox", f"slow/{prefix}/{number}", io.BytesIO(body), len(body))
        wanted[f"slow/{prefix}/{number}/result.json"] = hashlib.sha256(body).hexdigest()
    return wanted


def results(up: Up, prefix: str) -> dict[str, str]:
    keys = [o.object_name for o in up.s3.list_objects("outbox", prefix=f"slow/{prefix}/", recursive=True)]
    return {str(key): json.loads(up.read("outbox", key))["sha256"] for key in keys}


def states(up: Up, prefix: str) -> list[str]:
    jobs = up.client.jobs(function="slow")
    return [job.state for job in jobs if job.data["input"]["key"].startswith(f"slow/{prefix}/")]


def agents(up: Up) -> list[int]:
    return [row["pid"] for row in up.processes() if row["name"].startswith("near-")]


def runners(up: Up) -> list[int]:
    return [child.pid for pid in agents(up) for child in psutil.Process(pid).children(recursive=True)]


def victim(up: Up, name: str) -> int | None:
    if name == "agent":
        return next(iter(agents(up)), None)
    if name == "runner":
        return next(iter(runners(up)), None)
    return next((row["pid"] for row in up.processes() if row["name"] == name), None)


@pytest.mark.parametrize("name", ["runner", "agent", "gateway", "placement", "flower"])
def test_all_files_come_out_once_when_one_process_is_killed(up: Up, name: str) -> None:
    wanted = drop(up, f"kill-{name}", FILES)
    wait_until(lambda: len(results(up, f"kill-{name}")) >= 3, 60)
    pid = wait_until(lambda: victim(up, name), 20)
    os.kill(pid, signal.SIGKILL)

    wait_until(lambda: len(results(up, f"kill-{name}")) >= len(wanted), 90)
    assert results(up, f"kill-{name}") == wanted
    wait_until(lambda: states(up, f"kill-{name}") == ["succeeded"] * FILES, 60)
    if name in ("gateway", "placement", "flower"):
        wait_until(lambda: any(r["name"] == name and r["state"] == "running" for r in up.processes()), 30)


def test_down_and_up_again_runs_nothing_twice(tmp_path: Path, up_env: dict[str, str]) -> None:
    state = tmp_path / "state"
    up = start(state, up_env)
    try:
        up.client.deploy(FUNCTIONS / "slow")
        wanted = drop(up, "again", 6)
        wait_until(lambda: states(up, "again") == ["succeeded"] * 6, 90)
        ids = sorted(job.id for job in up.client.jobs())
        down = up.cli("down", "--state-dir", str(state))
        assert down.returncode == 0
        assert up.process.wait(20) == 0
        up = start(state, up_env)
        late = drop(up, "late", 1)
        wait_until(lambda: results(up, "late") == late, 90)
        assert results(up, "again") == wanted
        assert sorted(job.id for job in up.client.jobs() if "/again/" in job.data["input"]["key"]) == ids
    finally:
        stop(up)


def test_nothing_lives_after_up_was_killed(tmp_path: Path, up_env: dict[str, str]) -> None:
    up = start(tmp_path / "state", up_env)
    try:
        up.client.deploy(FUNCTIONS / "slow")
        drop(up, "orphans", 4)
        wait_until(lambda: runners(up), 60)
        family = psutil.Process(up.process.pid).children(recursive=True)
        assert len(family) >= 7
        up.process.kill()
        up.process.wait()
        wait_until(lambda: not [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE], 5)
    finally:
        stop(up)
