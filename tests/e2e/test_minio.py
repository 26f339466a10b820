"""The whole system on MinIO, with its events, as docs/how-to/use-minio.md says."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from minio.commonconfig import ENABLED
from minio.versioningconfig import VersioningConfig

from tests.e2e.conftest import FUNCTIONS, Up, start, stop
from tests.support import run_minio, wait_until
from tests.support.minio import ARN
from tidemill.local.ports import Reservation
from tidemill.local.seaweed import Webhook


@pytest.fixture(scope="module")
def on_minio(tmp_path_factory: pytest.TempPathFactory, up_env: dict[str, str]) -> Iterator[Up]:
    secret = "a-secret-of-the-operator"
    with Reservation() as ports:
        port = ports.take()
    hook = Webhook(f"http://127.0.0.1:{port}/hooks/s3/local", secret)
    env = {**up_env, "TIDEMILL_GATEWAY__HOOK_SECRET": secret, "TIDEMILL_INTAKE__NOTIFY_ARN": ARN}
    # Listings come too late to be taken for events.
    env["TIDEMILL_INTAKE__INTERVAL_S"] = "600"
    with run_minio(tmp_path_factory.mktemp("minio-e2e"), webhook=hook) as server:
        address = f"http://{server.access_key}:{server.secret_key}@127.0.0.1:{server.port}"
        system = start(tmp_path_factory.mktemp("up-minio") / "state", env, "--port", str(port), "--store", address)
        try:
            system.client.deploy(FUNCTIONS / "digest")
            yield system
        finally:
            stop(system)


def test_a_file_put_into_minio_becomes_a_result_by_its_event_alone(on_minio: Up) -> None:
    wait_until(lambda: on_minio.client.function("digest"), 10)

    def ruled() -> bool:
        return bool(on_minio.s3.get_bucket_notification("inbox").queue_config_list)

    wait_until(ruled, 20)
    for name in ("a b.txt", "a+b%2F.txt", "日本 ä.txt"):
        on_minio.s3.put_object("inbox", f"digest/{name}", io.BytesIO(name.encode()), len(name.encode()))
    wait_until(lambda: len(list(on_minio.client.jobs(state="succeeded"))) == 3, 60)
    found = {item.object_name for item in on_minio.s3.list_objects("outbox", "digest/", recursive=True)}
    assert len(found) == 3


def test_a_call_that_names_an_older_version_gets_the_result_of_that_version(on_minio: Up) -> None:
    on_minio.s3.make_bucket("versions")
    on_minio.s3.set_bucket_versioning("versions", VersioningConfig(ENABLED))
    older, _ = (on_minio.s3.put_object("versions", "a.txt", io.BytesIO(text), 3) for text in (b"old", b"new"))
    named = {"bucket": "versions", "key": "a.txt", "version_id": older.version_id}
    assert on_minio.client.run("digest", named)["sha256"] == hashlib.sha256(b"old").hexdigest()
    on_minio.s3.remove_object("versions", "a.txt")  # a delete marker
    assert on_minio.client.run("digest", named, params={"salt": "x"})["sha256"] == hashlib.sha256(b"oldx").hexdigest()


def test_doctor_says_that_events_come(on_minio: Up, tmp_path: Path) -> None:
    def events() -> dict[str, str]:
        done = on_minio.cli("doctor", "--json", "--state-dir", str(on_minio.state_dir), check=False)
        return next(row for row in json.loads(done.stdout) if row["name"] == "events")

    wait_until(lambda: events()["state"] == "ok", 60)
    assert "the last test event took" in events()["detail"]
