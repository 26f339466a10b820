"""Functions that feed each other: the hop count ends the round, and says so."""

from __future__ import annotations

import io
from pathlib import Path

import httpx

from tests.e2e.conftest import Up
from tests.support import wait_until

MAX_HOPS = 8  # the default


def _function(folder: Path, name: str, reads: str, writes: str) -> Path:
    folder = folder / name
    folder.mkdir()
    (folder / "turn.py").write_text("def turn(file, ctx):\n    return {'size': file.size}\n")
    (folder / "function.yaml").write_text(
        f"name: {name}\nhandler: turn:turn\n"
        f"trigger: {{bucket: carousel, prefix: {reads}/}}\noutput: {{bucket: carousel, prefix: {writes}/}}\n"
    )
    return folder


def test_two_functions_that_feed_each_other_stop_after_the_most_hops(up: Up, tmp_path: Path) -> None:
    for name, reads, writes in (("ping", "ping", "pong"), ("pong", "pong", "ping")):
        up.client.deploy(_function(tmp_path, name, reads, writes))
    up.s3.put_object("carousel", "ping/ball", io.BytesIO(b"x"), 1)

    def hops() -> list[int]:
        jobs = [*up.client.jobs(function="ping"), *up.client.jobs(function="pong")]
        return sorted(job.data["input"]["hop"] for job in jobs if job.state == "succeeded")

    def reasons() -> list[str]:
        headers = {"Authorization": f"Bearer {up.status['token']}"}
        answer = httpx.get(f"{up.status['url']}/api/v1/ignored", headers=headers, trust_env=False)
        return [row["reason"] for row in answer.json()["ignored"] if row["bucket"] == "carousel"]

    wait_until(lambda: reasons() == [f"loop guard: hop count {MAX_HOPS + 1} is above {MAX_HOPS}"], 60)
    assert hops() == list(range(MAX_HOPS + 1))
    for name in ("ping", "pong"):
        up.client.delete_function(name)
