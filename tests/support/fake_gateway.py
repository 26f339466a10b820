"""A gateway of a few routes over `http.server`, for tests of the client and the command line.

It keeps jobs in memory and ends them when a test says so. `faults` are functions that see each request first and may
answer it, or break the connection, in place of the route.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.parser import BytesParser
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "tm_test"
Fault = Callable[["Handler"], bool]


@dataclass
class Seen:
    """A request as it arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def form(self) -> dict[str, bytes]:
        head = f"Content-Type: {self.headers['content-type']}\r\n\r\n".encode()
        message = BytesParser(policy=HTTP).parsebytes(head + self.body)
        parts = list(message.iter_parts())  # type: ignore[attr-defined]
        return {part.get_param("name", header="content-disposition"): part.get_payload(decode=True) for part in parts}


@dataclass
class FakeGateway:
    """What the routes share. `auto` ends each new job at once with the result that it gives for its input bytes."""

    url: str = ""
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    results: dict[tuple[str, str], bytes] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    functions: dict[str, dict[str, Any]] = field(default_factory=dict)
    pools: dict[str, dict[str, Any]] = field(default_factory=dict)
    logs: dict[str, list[str]] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    auto: Callable[[bytes], Any] | None = None
    changed: threading.Condition = field(default_factory=threading.Condition)

    def end(self, job_id: str, state: str, outputs: dict[str, bytes] | None = None, **error: Any) -> None:
        """Finish a job."""
        with self.changed:
            job = self.jobs[job_id]
            for name, content in (outputs or {}).items():
                self.results[job_id, name] = content
                entry = {"bucket": "tidemill", "key": f"results/{job_id}/{name}", "size": len(content), "name": name}
                job["outputs"].append({**entry, "content_type": "application/json" if name.endswith("json") else None})
            job.update(state=state, finished_at=job["created_at"] + 1.5, error=error or None)
            self.changed.notify_all()

    def submit(self, function: str, content: bytes, key: str, name: str, params: Any) -> dict[str, Any]:
        with self.changed:
            job_id = f"{abs(hash((function, key))):032x}"[:32]
            if job_id in self.jobs:
                return self.jobs[job_id]
            self.jobs[job_id] = {
                "id": job_id,
                "function": function,
                "revision": "0123456789ab",
                "generation": 1,
                "state": "queued",
                "input": {"bucket": "tidemill", "key": "payloads/x", "etag": "e", "size": len(content), "name": name},
                "params": params,
                "created_at": 1000.0 + len(self.jobs),
                "outputs": [],
                "cost": {"usd": 0.0, "gpu_seconds": 0.0},
                "error": None,
            }
        if self.auto is not None:
            value = self.auto(content)
            if isinstance(value, Exception):
                self.end(job_id, "failed", code="function_failed", message=str(value), traceback="T", log_tail="L")
            else:
                self.end(job_id, "succeeded", {"result.json": json.dumps(value).encode()})
        return self.jobs[job_id]


class Handler(BaseHTTPRequestHandler):
    gateway: FakeGateway
    protocol_version = "HTTP/1.1"
    request_seen: Seen

    def log_message(self, *_: object) -> None:
        """Tests read `seen`."""

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.request_seen = Seen(self.command, parts.path, query, headers, body)
        self.gateway.seen.append(self.request_seen)
        for fault in self.gateway.faults:
            if fault(self):
                return
        if not parts.path.startswith("/put/") and headers.get("authorization") != f"Bearer {TOKEN}":
            self.problem(401, "not_allowed", "the token is not known", "Set TIDEMILL_TOKEN.")
            return
        for method, pattern, route in ROUTES:
            match = re.fullmatch(pattern, parts.path)
            if match and method == self.command:
                route(self, *map(unquote, match.groups()))
                return
        self.problem(404, "not_found", f"no {parts.path}", "List what exists.")

    do_GET = do_POST = do_PUT = do_DELETE = _serve

    def json(self, value: Any, status: int = 200) -> None:
        self.reply(json.dumps(value).encode(), status)

    def reply(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def problem(self, status: int, code: str, detail: str, hint: str, **headers: str) -> None:
        document = {"status": status, "code": code, "detail": detail, "hint": hint, "request_id": "r1"}
        self.reply(json.dumps(document).encode(), status, **headers)

    def drop(self) -> None:
        """Break the connection without an answer."""
        self.close_connection = True

    def found(self, job_id: str) -> dict[str, Any] | None:
        job = self.gateway.jobs.get(job_id)
        if job is None:
            self.problem(404, "not_found", f"there is no job {job_id}", "List jobs.")
        return job


def _accept(handler: Handler, function: str) -> dict[str, Any] | None:
    seen = handler.request_seen
    if function not in handler.gateway.functions:
        handler.problem(404, "not_found", f"there is no function {function}", "`tidemill function list` shows all.")
        return None
    key = seen.headers["idempotency-key"]
    if seen.headers["content-type"].startswith("application/json"):
        given = json.loads(seen.body)
        return handler.gateway.submit(function, given["key"].encode(), key, given["key"], given["params"])
    form = seen.form
    return handler.gateway.submit(function, form["file"], key, form["name"].decode(), json.loads(form["params"]))


def _submit(handler: Handler, function: str) -> None:
    if (job := _accept(handler, function)) is not None:
        handler.json(job, 202)


def _run(handler: Handler, function: str) -> None:
    if (job := _accept(handler, function)) is None:
        return
    _hold(handler, job, float(handler.request_seen.query["timeout"]))
    over = job["state"] in {"succeeded", "failed", "cancelled"}
    content = handler.gateway.results.get((job["id"], "result.json"))
    inline = content is not None
    answer = {"job": job, "result_inline": inline, "result": json.loads(content) if content is not None else None}
    handler.json(answer, 200 if over else 202)


def _hold(handler: Handler, job: dict[str, Any], wait_s: float) -> None:
    give_up = time.monotonic() + wait_s
    with handler.gateway.changed:
        while job["state"] not in {"succeeded", "failed", "cancelled"} and time.monotonic() < give_up:
            handler.gateway.changed.wait(give_up - time.monotonic())


def _jobs(handler: Handler) -> None:
    query = handler.request_seen.query
    found = [job for job in reversed(handler.gateway.jobs.values()) if _fits(job, query)]
    start, limit = int(query.get("cursor", 0)), int(query["limit"])
    more = start + limit < len(found)
    handler.json({"jobs": found[start : start + limit], "cursor": str(start + limit) if more else None})


def _fits(job: dict[str, Any], query: dict[str, str]) -> bool:
    facts = {"state": job["state"], "function": job["function"], "reason": (job["error"] or {}).get("code")}
    return all(query.get(name) in (None, fact) for name, fact in facts.items())


def _job(handler: Handler, job_id: str) -> None:
    if (job := handler.found(job_id)) is not None:
        _hold(handler, job, float(handler.request_seen.query.get("wait", 0)))
        handler.json(job)


def _outputs(handler: Handler, job_id: str) -> None:
    if (job := handler.found(job_id)) is None:
        return
    name = handler.request_seen.query.get("name")
    if name is None:
        url = handler.gateway.url
        handler.json({"outputs": [{**entry, "url": f"{url}/link/{entry['name']}"} for entry in job["outputs"]]})
    else:
        handler.reply(handler.gateway.results[job_id, name])


def _logs(handler: Handler, job_id: str) -> None:
    lines = handler.gateway.logs.get(job_id, [])
    query = handler.request_seen.query
    if query["format"] == "text":
        handler.reply("".join(f"{line}\n" for line in lines).encode())
        return
    after = int(query["after"])
    rows = [{"position": str(i), "at": 1.0, "stream": "stdout", "text": t} for i, t in enumerate(lines, 1) if i > after]
    handler.json({"lines": rows, "next": str(max(after, len(lines))), "done": not rows})


def _cancel(handler: Handler, job_id: str) -> None:
    if (job := handler.found(job_id)) is not None:
        if job["state"] == "queued":
            handler.gateway.end(job_id, "cancelled", code="cancelled", message="cancelled by default")
        handler.json(job)


def _retry(handler: Handler, job_id: str) -> None:
    if (job := handler.found(job_id)) is not None:
        key = handler.request_seen.headers["idempotency-key"]
        if job.get("retried_by") != key:
            job.update(state="queued", generation=job["generation"] + 1, error=None, retried_by=key)
        handler.json(job, 202)


def _uploads(handler: Handler) -> None:
    given = json.loads(handler.request_seen.body)
    number = len(handler.gateway.objects)
    handler.gateway.objects[f"{number}"] = f"{given['bucket']}/{given['key']}".encode()
    headers = {"Content-Type": given["content_type"]} if given["content_type"] else {}
    handler.json({"url": f"{handler.gateway.url}/put/{number}", "method": "PUT", "headers": headers})


def _put(handler: Handler, number: str) -> None:
    place = handler.gateway.objects.pop(number).decode()
    handler.gateway.objects[place] = handler.request_seen.body
    handler.reply(b"")


def _deploy(handler: Handler, name: str) -> None:
    form = handler.request_seen.form
    entry = {"name": name, "spec": json.loads(form["spec"]), "revision": "abc", "deployed_at": 1.0}
    handler.gateway.functions[name] = entry
    handler.json(entry)


def _function(handler: Handler, name: str) -> None:
    if name in handler.gateway.functions:
        handler.json(handler.gateway.functions[name])
    else:
        handler.problem(404, "not_found", f"there is no function {name}", "Did you mean echo?")


def _delete_function(handler: Handler, name: str) -> None:
    handler.json(handler.gateway.functions.pop(name))


def _put_pool(handler: Handler, name: str) -> None:
    entry = {**json.loads(handler.request_seen.body), "draining": False, "live": {"agents": 0}}
    handler.gateway.pools[name] = entry
    handler.json(entry)


def _drain(handler: Handler, name: str, verb: str) -> None:
    handler.gateway.pools[name]["draining"] = verb == "drain"
    handler.json(handler.gateway.pools[name])


def _delete_pool(handler: Handler, name: str) -> None:
    del handler.gateway.pools[name]
    handler.reply(b"", 204)


def _replay(handler: Handler, name: str) -> None:
    """Two answers, as of a service that could not do all in one request."""
    given = json.loads(handler.request_seen.body)
    counts: dict[str, Any] = {"function": name, "dry_run": given["dry_run"], "ignored": {"empty": 1}, "refused": {}}
    if given["failed_only"] and "cursor" not in given:
        more = {"found": 2, "started": 2, "known": 0, "examples": ["a", "b"], "complete": False, "cursor": "a" * 32}
    else:
        more = {"found": 3, "started": 1, "known": 2, "examples": ["inbox/old"], "complete": True, "cursor": None}
    handler.json({**counts, **more}, 200 if given["dry_run"] else 202)


_READINESS = {
    "ready": False,
    "checks": {"ledger": "ok", "store": "it is away"},
    "events": {"ok": False, "detail": "no event within 10 s", "last_s": None},
}
API = "/api/v1"
ROUTES: list[tuple[str, str, Callable[..., None]]] = [
    ("POST", rf"{API}/functions/([^/]+)/jobs", _submit),
    ("POST", rf"{API}/functions/([^/]+)/run", _run),
    ("GET", rf"{API}/jobs", _jobs),
    ("GET", rf"{API}/jobs/([^/]+)", _job),
    ("GET", rf"{API}/jobs/([^/]+)/outputs", _outputs),
    ("GET", rf"{API}/jobs/([^/]+)/logs", _logs),
    ("POST", rf"{API}/jobs/([^/]+)/cancel", _cancel),
    ("POST", rf"{API}/jobs/([^/]+)/retry", _retry),
    ("POST", rf"{API}/uploads", _uploads),
    ("PUT", r"/put/(\d+)", _put),
    ("GET", rf"{API}/functions", lambda h: h.json({"functions": list(h.gateway.functions.values())})),
    ("GET", rf"{API}/functions/([^/]+)", _function),
    ("PUT", rf"{API}/functions/([^/]+)", _deploy),
    ("DELETE", rf"{API}/functions/([^/]+)", _delete_function),
    ("GET", rf"{API}/pools", lambda h: h.json({"pools": list(h.gateway.pools.values())})),
    ("GET", rf"{API}/pools/([^/]+)", lambda h, name: h.json(h.gateway.pools[name])),
    ("PUT", rf"{API}/pools/([^/]+)", _put_pool),
    ("POST", rf"{API}/pools/([^/]+)/(drain|resume)", _drain),
    ("DELETE", rf"{API}/pools/([^/]+)", _delete_pool),
    (
        "GET",
        rf"{API}/ignored",
        lambda h: h.json({"ignored": [{"bucket": "inbox", "key": "a\n/.hid", "reason": "hidden name", "at": 1.0}]}),
    ),
    ("POST", rf"{API}/functions/([^/]+)/replay", _replay),
    ("GET", rf"{API}/damaged", lambda h: h.json({"damaged": [{"key": "pools/cpu.json", "reason": "torn"}]})),
    ("GET", r"/readyz", lambda h: h.json(_READINESS, 503)),
]


@contextmanager
def run_fake_gateway() -> Iterator[FakeGateway]:
    """A fake gateway with the function `echo` while the block runs."""
    gateway = FakeGateway()
    gateway.functions["echo"] = {"name": "echo", "spec": {"name": "echo", "handler": "e:e"}, "revision": "1"}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"gateway": gateway}))
    server.daemon_threads = True
    gateway.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield gateway
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
