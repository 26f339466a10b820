"""Dropping files in all ways, with patience: whatever fails is tried again, as a person or a client would.

The journal says what was accepted: an object that the store took (its answer said so), or a call that got a 202. What
was never accepted is nobody's promise.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.faults.schedule import Drop
from tidemill.errors import ServiceUnavailable
from tidemill.store import Store

IN, OUT, NAMED = "lab-in", "lab-out", "lab-named"
_PAUSE_S = 0.3
_THREADS = 8


@dataclass(slots=True)
class Entry:
    """What became of one drop. `bodies`: every content that was ever sent to its key, the wanted one last."""

    drop: Drop
    key: str
    bodies: list[bytes] = field(default_factory=list)
    tries: int = 0
    accepted_at: float | None = None
    job_id: str | None = None
    deleted: bool = False
    cancelled: bool = False
    retried: bool = False
    trouble: str = ""
    last_error: str = ""

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.bodies[-1]).hexdigest()


class Load:
    """Runs the drops of a plan in threads; `journal` has an entry for each that has begun."""

    def __init__(self, store: Store, urls: Sequence[str], token: str, drops: Sequence[Drop], seed: int) -> None:
        self.journal: list[Entry] = []
        self._store = store
        self._gateways = [
            httpx.Client(
                base_url=f"{url}/api/v1", headers={"Authorization": f"Bearer {token}"}, timeout=15, trust_env=False
            )
            for url in urls
        ]
        self._turn = itertools.count()
        self._drops = drops
        self._seed = seed
        self._give_up = threading.Event()
        self._mutex = threading.Lock()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="load")
        self._began = 0.0
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def start(self) -> None:
        self._store.ensure_bucket(NAMED)
        self._began = time.monotonic()
        self._thread.start()

    @property
    def accepted(self) -> int:
        with self._mutex:
            return sum(entry.accepted_at is not None for entry in self.journal)

    def finish(self, wait_s: float) -> None:
        """Wait until everything is accepted; what is not by then never is."""
        deadline = time.monotonic() + wait_s
        self._thread.join(wait_s)
        while time.monotonic() < deadline and self.accepted < len(self._drops):
            time.sleep(0.1)
        self.stop()

    def stop(self) -> None:
        self._give_up.set()
        self._thread.join(5)
        self._pool.shutdown(wait=True, cancel_futures=True)
        for gateway in self._gateways:
            gateway.close()

    @property
    def _http(self) -> httpx.Client:
        """One gateway after the other."""
        return self._gateways[next(self._turn) % len(self._gateways)]

    def _run(self) -> None:
        for drop in self._drops:
            if self._give_up.wait(max(0.0, self._began + drop.at_s - time.monotonic())):
                return
            entry = Entry(drop, f"in/{drop.way}/{drop.number:04d}.json")
            with self._mutex:
                self.journal.append(entry)
            self._pool.submit(self._guarded, entry)

    def _guarded(self, entry: Entry) -> None:
        try:
            self._drop(entry)
        except Exception as error:  # noqa: BLE001 - the journal says what the load could not do
            entry.trouble = repr(error)

    # -- the ways ------------------------------------------------------------------------------------------------
    def _drop(self, entry: Entry) -> None:
        drop = entry.drop
        if drop.way in ("put", "presigned"):
            if drop.twist == "overwrite":
                self._object(entry, IN, self._body(drop, 1))
                entry.accepted_at = None
                self._give_up.wait(drop.run_s * 3)
            self._object(entry, IN, self._body(drop))
            if drop.twist == "delete" and not self._give_up.wait(drop.run_s * 2):
                entry.deleted = True
                self._again(entry, lambda: self._store.delete(IN, entry.key))
            return
        if drop.way == "named":
            self._object(entry, NAMED, self._body(drop))
            entry.accepted_at = None
        else:
            entry.bodies.append(self._body(drop))
        job = self._again(entry, lambda: self._call(entry))
        if job is None:
            return
        entry.job_id, entry.accepted_at = job["id"], time.monotonic()
        if drop.twist == "again":
            repeated = self._again(entry, lambda: self._call(entry))
            if repeated is not None and repeated["id"] != entry.job_id:
                entry.trouble = f"the same idempotency key gave {entry.job_id} and {repeated['id']}"
        elif drop.twist == "cancel":
            entry.cancelled = True
            self._again(entry, lambda: self._http.post(f"/jobs/{entry.job_id}/cancel").raise_for_status())

        elif drop.twist == "retry":
            self._again(entry, lambda: self._over(entry))
            entry.retried = bool(self._again(entry, lambda: self._retry(entry)))

    def _retry(self, entry: Entry) -> bool:
        """A retry has no key: sent again after an answer that got lost, it may be one generation more."""
        answer = self._http.post(f"/jobs/{entry.job_id}/retry")
        if answer.status_code == 409 and "only a job that is over" in answer.text:
            return False  # an older copy of Redis was put back meanwhile, and knows it as running
        answer.raise_for_status()
        return True

    def _over(self, entry: Entry) -> bool:
        answer = self._http.get(f"/jobs/{entry.job_id}").raise_for_status().json()
        return answer["state"] in ("succeeded", "failed", "cancelled")

    def _body(self, drop: Drop, version: int = 0) -> bytes:
        seconds = drop.run_s
        return json.dumps({"n": drop.number, "want": drop.want, "seconds": seconds, "version": version}).encode()

    def _object(self, entry: Entry, bucket: str, body: bytes) -> None:
        entry.bodies.append(body)

        def put() -> bool:
            entry.tries += 1
            if entry.drop.way == "presigned":
                asked = self._http.post("/uploads", json={"bucket": bucket, "key": entry.key}).raise_for_status().json()
                httpx.put(
                    asked["url"], content=body, headers=asked["headers"], timeout=10, trust_env=False
                ).raise_for_status()
            else:
                self._store.put(bucket, entry.key, body)
            return True

        if self._again(entry, put):
            entry.accepted_at = time.monotonic()

    def _call(self, entry: Entry) -> dict[str, Any]:
        headers = {"Idempotency-Key": f"lab-{self._seed}-{entry.drop.number}"}
        if entry.drop.way == "named":
            answer = self._http.post("/functions/call/jobs", headers=headers, json={"bucket": NAMED, "key": entry.key})
        else:
            files = {"file": (f"{entry.drop.number}.json", entry.bodies[-1], "application/json")}
            answer = self._http.post("/functions/call/jobs", headers=headers, files=files)
        answer.raise_for_status()
        job: dict[str, Any] = answer.json()
        return job

    def _again(self, entry: Entry, action: Any) -> Any:
        """Do it until it works. An answer that says that it never will (4xx) is trouble."""
        while not self._give_up.is_set():
            try:
                if (done := action()) is not False:
                    return True if done is None else done
            except httpx.HTTPStatusError as error:
                if error.response.status_code < 500 and error.response.status_code != 429:
                    entry.trouble = f"{error.request.url}: {error.response.status_code} {error.response.text[:300]}"
                    return None
            except (httpx.HTTPError, ServiceUnavailable) as error:
                entry.last_error = repr(error)[:200]
            self._give_up.wait(_PAUSE_S)
        return None
