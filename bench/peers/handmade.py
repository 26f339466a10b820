"""The peer: a webhook receiver that enqueues a Celery task, and the task that does the work. No ledger, no record.

    store --webhook--> FastAPI --Redis--> Celery (prefork) : download, run, upload

It is written with care, as far as it goes: late acknowledgement, also when a process of the worker dies, no hoarded
messages, no stored results, one client of the store for each process, another try when store or network fail, and the
result last of an input's outputs. What it lacks is what Tidemill adds: a lost event, a killed worker or an emptied
Redis costs jobs here, and a redelivered message does one twice.

Settings come from the environment: `PEER_REDIS`, `PEER_TOKEN`, `PEER_STORE` (host:port), `PEER_ACCESS_KEY`,
`PEER_SECRET_KEY`, `PEER_REGION`; where others than the usual ones are wanted `PEER_INBOX`, `PEER_OUTBOX`,
`PEER_FUNCTION` (module:name) and `PEER_VISIBILITY_S` (seconds until an unacknowledged message comes again).
"""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from celery import Celery
from fastapi import FastAPI, Header, HTTPException
from minio import Minio
from minio.error import S3Error, ServerError
from urllib3.exceptions import HTTPError

INBOX, OUTBOX = os.environ.get("PEER_INBOX", "inbox"), os.environ.get("PEER_OUTBOX", "outbox")
TROUBLE = (S3Error, ServerError, HTTPError, OSError)
Function = Callable[[Path, Path], dict[str, Any]]  # an input and an empty folder for files -> the result

tasks = Celery("handmade", broker=os.environ.get("PEER_REDIS", "redis://127.0.0.1:6379/0"))
tasks.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"visibility_timeout": float(os.environ.get("PEER_VISIBILITY_S", "3600"))},
)
app = FastAPI()


@app.post("/hook")
def hook(event: dict[str, Any], authorization: str = Header("")) -> dict[str, bool]:
    """Take one event of SeaweedFS' webhook: a new file in the inbox becomes a task."""
    if authorization != f"Bearer {os.environ['PEER_TOKEN']}":
        raise HTTPException(401)
    entry = event.get("message", {}).get("new_entry") or {}
    root = f"/buckets/{INBOX}/"
    if event.get("event_type") == "create" and event["key"].startswith(root) and not entry.get("is_directory"):
        work.delay(event["key"].removeprefix(root))
    return {"ok": True}


@tasks.task(autoretry_for=TROUBLE, retry_backoff=True, retry_backoff_max=20, max_retries=10)  # type: ignore[untyped-decorator]
def work(key: str) -> None:
    """Fetch the object, run the function on it, put what it wrote beside the others' and its result last."""
    with tempfile.TemporaryDirectory() as folder:
        path, outputs = Path(folder, "input"), Path(folder, "outputs")
        outputs.mkdir()
        try:
            _store().fget_object(INBOX, key, str(path))
        except S3Error as error:
            if error.code == "NoSuchKey":
                return  # deleted again
            raise
        body = json.dumps(_function()(path, outputs)).encode()
        for file in sorted(outputs.iterdir()):
            _store().fput_object(OUTBOX, f"{key}/{file.name}", str(file))
        _store().put_object(OUTBOX, f"{key}/result.json", io.BytesIO(body), len(body), "application/json")


def nothing(path: Path, outputs: Path) -> dict[str, int]:
    """What `bench/functions/nothing` does."""
    return {"size": path.stat().st_size}


@cache
def _function() -> Function:
    found: Function = resolve_name(os.environ.get("PEER_FUNCTION", "bench.peers.handmade:nothing"))
    return found


@cache
def _store() -> Minio:
    return Minio(
        os.environ["PEER_STORE"],
        access_key=os.environ["PEER_ACCESS_KEY"],
        secret_key=os.environ["PEER_SECRET_KEY"],
        region=os.environ["PEER_REGION"],
        secure=False,
    )
