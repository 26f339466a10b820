"""A MinIO on loopback, as an operator would start it: one folder, one port, and a webhook without `queue_dir`."""

import http.client
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from minio import Minio

from tests.support.servers import S3, running
from tests.support.tools import MINIO, ToolMissing, find
from tidemill.local.ports import LOOPBACK, Reservation
from tidemill.local.ready import NotReady
from tidemill.local.seaweed import Webhook

ARN = "arn:minio:sqs::tidemill:webhook"


@dataclass(frozen=True)
class MinioServer:
    """One server with its data in `directory`."""

    directory: Path
    port: int
    access_key: str
    secret_key: str = field(repr=False)
    webhook: Webhook | None = None
    region: str = "us-east-1"

    @property
    def endpoint(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def s3(self) -> S3:
        return S3(self.endpoint, self.access_key, self.secret_key, self.region)

    def create_bucket(self, name: str) -> None:
        store = Minio(f"{LOOPBACK}:{self.port}", self.access_key, self.secret_key, secure=False, region=self.region)
        store.make_bucket(name)

    def argv(self) -> list[str]:
        return [str(find(MINIO)), "server", "--quiet", "--address", f"{LOOPBACK}:{self.port}", "data"]

    def env(self) -> dict[str, str]:
        settings = {
            "HOME": str(self.directory),
            "MINIO_ROOT_USER": self.access_key,
            "MINIO_ROOT_PASSWORD": self.secret_key,
            "MINIO_REGION": self.region,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
        }
        if self.webhook is not None:
            settings |= {
                "MINIO_NOTIFY_WEBHOOK_ENABLE_tidemill": "on",
                "MINIO_NOTIFY_WEBHOOK_ENDPOINT_tidemill": self.webhook.url,
                "MINIO_NOTIFY_WEBHOOK_AUTH_TOKEN_tidemill": self.webhook.token,
            }
        return settings

    def check_ready(self) -> None:
        """Raises `NotReady` until the server can write."""
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=5.0)
        try:
            connection.request("GET", "/minio/health/cluster")
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            raise NotReady(f"port {self.port}: {error or type(error).__name__}") from error
        finally:
            connection.close()
        if status != 200:
            raise NotReady(f"port {self.port}: {status}")


@contextmanager
def run_minio(directory: Path, *, webhook: Webhook | None = None) -> Iterator[MinioServer]:
    """A MinIO while the block runs. Skips the test when it is not built; with `CI` set that is a failure."""
    try:
        find(MINIO)
    except ToolMissing as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing))
        pytest.skip(str(missing))
    with Reservation() as ports:
        server = MinioServer(directory, ports.take(), "test" + secrets.token_hex(8), secrets.token_hex(20), webhook)
        (directory / "data").mkdir()
        with running(server.argv(), server.env(), directory, server.check_ready):
            yield server
