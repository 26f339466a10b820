"""A gateway over real servers, on a port of its own, and an agent that is none."""

import asyncio
import base64
import contextlib
import gzip
import hashlib
import io
import json
import logging
import socket
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import structlog
import uvicorn
from pydantic import SecretStr

from tests.support.described import Description
from tests.support.servers import S3
from tests.support.waiting import wait_until
from tidemill.doorbell import Doorbell
from tidemill.ledger import connect
from tidemill.ledger.api import AgentReport, Ledger
from tidemill.models import CommitOutput, JobError, Manifest, Placement
from tidemill.record import Record
from tidemill.record.ending import End, finish, output_key
from tidemill.settings import GatewaySettings, IntakeSettings
from tidemill.store import Store, open_store
from tidemill_gateway.api import create_app
from tidemill_gateway.services import Services

TOKEN, HOOK_SECRET = "test-token", "test-hook-secret"
AGENT = "pool-000001"
ECHO: dict[str, object] = {
    "name": "echo",
    "handler": "work:run",
    "params": {"top_k": {"type": "integer", "default": 3, "minimum": 1}},
}


@dataclass
class Lab:
    """A running gateway: its services, and a client with the token. Each answer is held against the description."""

    services: Services
    http: httpx.Client
    url: str
    description: Description

    @property
    def ledger(self) -> Ledger:
        return self.services.ledger

    @property
    def store(self) -> Store:
        return self.services.store

    def deploy(self, spec: dict[str, object], code: bytes | None = None) -> httpx.Response:
        """PUT a function; without `code` it gets an archive with one file."""
        files = {
            "spec": (None, json.dumps(spec)),
            "code": ("code.tar.gz", code or archive({"work.py": b"def run(file, ctx): return 1\n"})),
        }
        return self.http.put(f"/api/v1/functions/{spec['name']}", files=files)

    def jobs(self, **filters: str) -> list[dict[str, object]]:
        """All jobs, through every page."""
        found: list[dict[str, object]] = []
        while True:
            page = self.http.get("/api/v1/jobs", params={"limit": "200", **filters}).raise_for_status().json()
            found += page["jobs"]
            if page["cursor"] is None:
                return found
            filters["cursor"] = page["cursor"]

    def end(self, job_id: str, result: bytes | None = b"1", error: JobError | None = None) -> Manifest:
        """Do what an agent does with a queued job: claim it, and end it with `result.json` or an error."""
        ledger, record = self.ledger, self.services.record
        ledger.heartbeat(AgentReport(AGENT, "pool", 4, state="ready"))
        assert ledger.release(job_id, AGENT, Placement(pool="pool", reason="the only one"))
        [claim] = ledger.claim(AGENT, 1, 30.0)
        function = ledger.function(claim.job.function)
        assert function is not None
        outputs: tuple[CommitOutput, ...] = ()
        if error is None and result is not None:
            bucket, key = output_key(function.spec, claim.job, "result.json", platform_bucket=record.bucket)
            outputs = (
                CommitOutput(
                    name="result.json",
                    bucket=bucket,
                    key=key,
                    size=len(result),
                    sha256=hashlib.sha256(result).hexdigest(),
                    content_type="application/json",
                    inline=base64.b64encode(result).decode(),
                ),
            )
        end = End("failed" if error else "succeeded", error=error, outputs=outputs)
        manifest = finish(ledger, record, claim, function, end)
        assert manifest is not None
        return manifest


def archive(files: dict[str, bytes]) -> bytes:
    """A tar.gz with these files."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def submit(lab: Lab, content: bytes = b"x", key: str | None = None, params: object = None) -> httpx.Response:
    """Call `ECHO` with one file."""
    headers = {"Idempotency-Key": key} if key else {}
    files = {"file": ("a b.txt", content, "text/plain"), "params": (None, json.dumps(params or {}))}
    return lab.http.post("/api/v1/functions/echo/jobs", files=files, headers=headers)


@contextlib.contextmanager
def free_socket(port: int = 0) -> Iterator[socket.socket]:
    """A bound socket, so that the port is known before the server starts."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", port))
        yield sock


@contextlib.contextmanager
def run_gateway(
    s3: S3,
    redis_url: str,
    platform: str,
    sock: socket.socket,
    *,
    buckets: tuple[str, ...] = ("*",),
    max_upload: int = 64 * 2**20,
    interval_s: float = 0.2,
    notify_arn: str = "",
) -> Iterator[Lab]:
    """A gateway while the block runs; its threads (`services.start()`) are the test's to start."""
    ledger = connect(redis_url)
    ledger.begin_epoch(1, 0)
    store = open_store(s3.settings)
    record = Record(store, platform)
    record.prepare()
    services = Services(
        ledger=ledger,
        record=record,
        store=store,
        bell=Doorbell(redis_url).message,
        gateway=GatewaySettings(
            token=SecretStr(TOKEN), hook_secret=SecretStr(HOOK_SECRET), buckets=buckets, max_upload=max_upload
        ),
        intake=IntakeSettings(interval_s=interval_s, notify_arn=notify_arn),
    )
    app = create_app(services)
    description = Description(app.openapi())
    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    # pytest takes standard output away and gives it back while the gateway's threads would print to it.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[sock])))
    thread.start()
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    try:
        wait_until(lambda: server.started, 10)
        with description.client(url, {"Authorization": f"Bearer {TOKEN}"}) as http:
            yield Lab(services, http, url, description)
    finally:
        server.should_exit = True
        thread.join(10)
        services.stop()
        ledger.close()
        structlog.reset_defaults()
