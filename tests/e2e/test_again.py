"""Again: failed jobs retried by reason, old objects replayed, from the command line of a real system."""

from __future__ import annotations

import io
import json
import time
from typing import Any

import pytest

from tests.e2e.conftest import Up
from tests.support import wait_until
from tidemill.errors import FunctionFailed


def _json(up: Up, *arguments: str, check: bool = True) -> Any:
    return json.loads(up.cli(*arguments, "--json", check=check).stdout)


def test_failed_jobs_are_listed_and_retried_by_reason(up: Up) -> None:
    jobs = {how: up.client.submit("faulty", how.encode(), params={"how": how}) for how in ("permanent", "exit")}
    for job in jobs.values():
        with pytest.raises(FunctionFailed):
            job.result(timeout=90)
    ended, bad = jobs["exit"].id, jobs["permanent"].id
    reason = up.client.job(ended).data["error"]["code"]
    assert reason != up.client.job(bad).data["error"]["code"]
    listed = _json(up, "job", "list", "--state", "failed", "--function", "faulty", "--reason", reason)
    assert ended in {row["id"] for row in listed}
    assert bad not in {row["id"] for row in listed}

    again = _json(up, "job", "retry", "--all", "--reason", reason, "--function", "faulty")
    assert ended in {row["id"] for row in again}
    assert {row["generation"] for row in again if row["id"] == ended} == {2}
    assert up.client.job(bad).data["generation"] == 1
    assert up.client.job(ended).wait(timeout=60).data["generation"] == 2


def test_objects_that_were_there_before_are_looked_at_and_replayed(up: Up, tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("late") / "late"
    folder.mkdir()
    (folder / "late.py").write_text("def late(file, ctx):\n    return file.key\n")
    (folder / "function.yaml").write_text(
        "name: late\nhandler: late:late\n"
        "trigger: {bucket: attic, prefix: old/}\noutput: {bucket: attic, prefix: out/}\n"
    )
    if not up.s3.bucket_exists("attic"):
        up.s3.make_bucket("attic")
    for name in ("old/a.txt", "old/b.txt", "old/sub/c.txt"):
        up.s3.put_object("attic", name, io.BytesIO(b"x"), 1)
    put_at = time.time()
    wait_until(lambda: time.time() > put_at + 1.1)
    up.client.deploy(folder)

    looked = _json(up, "replay", "late", "--dry-run")
    assert (looked["found"], looked["started"], looked["complete"]) == (3, 3, True)
    assert list(up.client.jobs(function="late")) == []
    assert "old/sub/c.txt" in up.cli("replay", "late", "--prefix", "old/sub/", "--dry-run").stdout
    assert _json(up, "replay", "late", "--prefix", "old/sub/")["started"] == 1
    assert _json(up, "replay", "late")["started"] == 2
    wait_until(lambda: len(list(up.client.jobs(function="late", state="succeeded"))) == 3, 60)
    assert _json(up, "replay", "late")["started"] == 0
    assert up.cli("replay", "late", "--prefix", "elsewhere/", check=False).returncode == 2
