"""Between the store and the webhook: events are dropped, doubled, shuffled, or come with junk, as the lab says.

It also sees every write below the output buckets, which the checker uses: an output that is written twice with another
content was visible in two versions, whatever is there at the end.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

from tidemill.local.ports import LOOPBACK

_WATCHED = ("/buckets/lab-out/", "/buckets/tidemill/results/", "/buckets/tidemill/manifests/")
_JUNK = (b"", b"{", b"[1,2]", b'{"Records": [{"eventName": 7}]}', b"\xff\xfe\x00", b'{"event_type":"create"}')


class EventProxy:
    """Serves from `start` to `close`. `mode` and `share` say what happens to events now."""

    def __init__(self, port: int, target: str, token: str, seed: int) -> None:
        self.url = f"http://{LOOPBACK}:{port}/events"
        self.mode = ""
        self.share = 0.0
        self.writes: dict[str, list[tuple[float, str]]] = defaultdict(list)  # path -> (time, content) of each write
        self.seen = self.passed = 0
        self._dice = random.Random(f"events/{seed}")
        self._target = target
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._mutex = threading.Lock()
        self._senders = ThreadPoolExecutor(8, thread_name_prefix="events")
        self.closed = threading.Event()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", "0")))
                proxy.take(body)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer((LOOPBACK, port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self.closed.set()
        self._server.shutdown()
        self._server.server_close()
        self._senders.shutdown(wait=False, cancel_futures=True)

    def take(self, body: bytes) -> None:
        """One event as the store sent it."""
        now = time.monotonic()
        self._note(now, body)
        with self._mutex:
            self.seen += 1
            hit = bool(self.mode) and self._dice.random() < self.share
            mode, wait_s = (self.mode, self._dice.uniform(0.0, 4.0)) if hit else ("", 0.0)
            junk = self._dice.choice(_JUNK)
        bodies = {"drop": [], "double": [body, body], "junk": [junk, body]}.get(mode, [body])
        for one in bodies:
            self._senders.submit(self._send, one, wait_s if mode == "shuffle" else 0.0)

    def _send(self, body: bytes, wait_s: float) -> None:
        if self.closed.wait(wait_s) and wait_s:
            return
        self.passed += self.post(body)  # the gateway may be dead: so is the event

    def post(self, body: bytes) -> bool:
        """Send it on, once. Gives whether the receiver took it, or said that it is junk."""
        try:
            answer = httpx.post(self._target, content=body, headers=self._headers, timeout=5, trust_env=False)
        except httpx.HTTPError:
            return False
        return answer.status_code < 500

    def _note(self, now: float, body: bytes) -> None:
        event = json.loads(body)
        path = event.get("key", "")
        entry = (event.get("message") or {}).get("new_entry")
        if entry is None or not path.startswith(_WATCHED) or entry.get("is_directory"):
            return
        attributes = entry.get("attributes") or {}
        content = str(
            attributes.get("md5") or entry.get("content") or [c.get("e_tag") for c in entry.get("chunks", [])]
        )
        with self._mutex:
            self.writes[path].append((now, content))
