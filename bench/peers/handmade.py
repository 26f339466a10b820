"""The peer: a webhook receiver that enqueues a Celery task, and the task that does the work. No ledger, no record.

    store --webhook--> FastAPI --Redis--> Celery (prefork) : download, run, upload

It is written with care, as far as it goes: late acknowledgement, no hoarded messages, no stored results, one client of
the store for each process. What it lacks is what Tidemill adds: a lost event, a killed worker or an emptied Redis costs
jobs here, and a redelivered message does one twice.

Settings come from the environment: `PEER_REDIS`, `PEER_TOKEN`, `PEER_STORE` (host:port), `PEER_ACCESS_KEY`,
`PEER_SECRET_KEY`, `PEER_REGION`.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from celery import Celery
from fastapi import FastAPI, Header, HTTPException
from minio import Minio

INBOX, OUTBOX = "inbox", "outbox"

tasks = Celery("handmade", broker=os.environ.get("PEER_REDIS", "redis://127.0.0.1:6379/0"))
tasks.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
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


@tasks.task  # type: ignore[untyped-decorator]
def work(key: str) -> None:
    """Fetch the object, run the function on it, put its result beside the others."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "input")
        _store().fget_object(INBOX, key, str(path))
        body = json.dumps(nothing(path)).encode()
        _store().put_object(OUTBOX, f"{key}/result.json", io.BytesIO(body), len(body), "application/json")


def nothing(path: Path) -> dict[str, int]:
    """What `bench/functions/nothing` does."""
    return {"size": path.stat().st_size}


@cache
def _store() -> Minio:
    return Minio(
        os.environ["PEER_STORE"],
        access_key=os.environ["PEER_ACCESS_KEY"],
        secret_key=os.environ["PEER_SECRET_KEY"],
        region=os.environ["PEER_REGION"],
        secure=False,
    )
