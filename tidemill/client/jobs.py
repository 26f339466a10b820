"""The calls about jobs: submit, run, look, wait, results, logs, cancel, retry, list.

A wait is a row of looks. The service holds each one until the job is over, at most `LOOK_S`; one that answers at once
is asked again after a pause that grows from 20 ms to 1 s. A wait never ends the job: not when its time is over, nor
when the caller is interrupted. A service that restarts meanwhile is waited for.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, Any
from urllib.parse import quote

from tidemill.client.asking import Asker
from tidemill.client.payloads import Payload, prepare
from tidemill.client.problems import job_error
from tidemill.client.values import Snapshot
from tidemill.client.wire import Body, Call, Emit, Pause, Request, Response
from tidemill.errors import InvalidSpec, NotFound, WaitTimeout

LOOK_S = 25.0
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0
# A service that was there when the wait began and is gone now is most likely being restarted.
_PATIENCE_S = 60.0
# Larger inputs are submitted first and waited for then, so that a cut line costs no second upload.
_LOG_WAIT_S = 20.0
_RUN_BYTES = 8 * 2**20
RESULT_NAME = "result.json"


@dataclass(frozen=True, slots=True)
class Finished:
    """A job that is over, and its result when the service sent it along (`inline` tells it from a result of None)."""

    job: Snapshot
    inline: bool = False
    value: Any = None


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line that a function printed or logged; `at` in seconds since 1970 (UTC)."""

    at: float
    stream: str
    text: str


@dataclass(frozen=True)
class JobCalls:
    """Each method gives a call for a driver."""

    asker: Asker

    def submit(
        self, function: str, payload: Payload, params: Mapping[str, Any] | None = None, key: str | None = None
    ) -> Call[Snapshot]:
        """Give the accepted job. Without `key` a random one is made, so that a repeated request stays one job."""
        response = yield from self.asker.ask(_submission("jobs", function, prepare(payload), params, key))
        return Snapshot(response.json())

    def run(
        self,
        function: str,
        payload: Payload,
        params: Mapping[str, Any] | None = None,
        key: str | None = None,
        timeout: float | None = None,
    ) -> Call[Finished]:
        """Submit and wait, in one request when the input is small. Raises the error of the job, or `WaitTimeout`."""
        prepared = prepare(payload)
        give_up = None if timeout is None else self.asker.clock() + timeout
        if isinstance(prepared, Body) and prepared.size > _RUN_BYTES:
            job = Snapshot((yield from self.asker.ask(_submission("jobs", function, prepared, params, key))).json())
        else:
            wait_s = LOOK_S if timeout is None else min(timeout, LOOK_S)
            request = _submission("run", function, prepared, params, key, wait_s)
            answer = (yield from self.asker.ask(request)).json()
            job = Snapshot(answer["job"])
            if job.done and answer.get("result_inline"):
                return Finished(job, True, answer.get("result"))
        left_s = None if give_up is None else max(0.0, give_up - self.asker.clock())
        return Finished((yield from self.finish(job, left_s)))

    def look(self, job_id: str, wait_s: float = 0.0, *, retry_s: float | None = None) -> Call[Snapshot]:
        """Give the job as it is now, or as soon as it is over within `wait_s` seconds."""
        query = {"wait": f"{wait_s:.3f}"} if wait_s > 0 else {}
        request = Request("GET", job_path(job_id), query=query, wait_s=wait_s)
        return Snapshot((yield from self.asker.ask(request, retry_s=retry_s)).json())

    def wait(self, job_id: str, timeout: float | None = None) -> Call[Snapshot]:
        """Give the job when it is over, whatever its end.

        Raises:
            WaitTimeout: `timeout` seconds have passed; the job goes on.
        """
        clock = self.asker.clock
        give_up = None if timeout is None else clock() + timeout
        pause_s = _FIRST_PAUSE_S
        while True:
            began = clock()
            left_s = None if give_up is None else max(0.0, give_up - began)
            wait_s = LOOK_S if left_s is None else min(left_s, LOOK_S)
            patience_s = _PATIENCE_S if left_s is None else min(left_s, _PATIENCE_S)
            job = yield from self.look(job_id, wait_s, retry_s=patience_s)
            if job.done:
                return job
            if give_up is not None and clock() >= give_up:
                raise _too_late(job, timeout or 0.0)
            if clock() - began < wait_s / 2:
                left_s = _LONGEST_PAUSE_S if give_up is None else max(0.0, give_up - clock())
                yield Pause(min(pause_s, left_s))
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def finish(self, job: Snapshot, timeout: float | None = None) -> Call[Snapshot]:
        """Give the job when it has succeeded; raises the error that it ended with, or `WaitTimeout`."""
        done = job if job.done else (yield from self.wait(job.id, timeout))
        error = job_error(done)
        if error is not None:
            raise error
        return done

    def results(self, finished: Finished) -> Call[dict[str, Any]]:
        """Give what a job gave: by name the decoded value of `result.json`, and an `OutputInfo` for each other file."""
        found: dict[str, Any] = {}
        for output in finished.job.outputs:
            found[output.name] = output
            if output.name == RESULT_NAME:
                if finished.inline:
                    found[output.name] = finished.value
                    continue
                content = yield from self.fetch(finished.job.id, output.name)
                try:
                    found[output.name] = json.loads(content)
                except ValueError:
                    continue  # a file of the function's own that only has this name
        return found

    def outputs(self, job_id: str) -> Call[list[dict[str, Any]]]:
        """Give the results as objects: bucket, key, size, content_type, name, and a presigned url."""
        response = yield from self.asker.ask(Request("GET", f"{job_path(job_id)}/outputs"))
        return rows(response, "outputs")

    def fetch(self, job_id: str, name: str, sink: Callable[[], IO[bytes]] | None = None) -> Call[bytes]:
        """Give the bytes of a result, or write them to a sink, which is opened anew for each try."""
        request = Request("GET", f"{job_path(job_id)}/outputs", query={"name": name}, sink=sink)
        return (yield from self.asker.ask(request)).content

    def address(self, job_id: str, name: str) -> Call[str]:
        """Give a presigned address of a result, which works for a while without a token."""
        for entry in (yield from self.outputs(job_id)):
            if entry.get("name") == name:
                return str(entry["url"])
        raise NotFound(f"Job {job_id} has no result {name!r}.", hint=f"See `tidemill job show {job_id}`.")

    def logs(self, job_id: str) -> Call[str]:
        """Give what is there of the log."""
        request = Request("GET", f"{job_path(job_id)}/logs", {"format": "text"})
        return (yield from self.asker.ask(request)).content.decode("utf-8", "replace")

    def follow(self, job_id: str) -> Call[None]:
        """Emit the lines of the log as `LogLine`, until the job is over and all are there."""
        after = "0"
        while True:
            query = {"format": "json", "after": after, "wait": f"{_LOG_WAIT_S:g}"}
            request = Request("GET", f"{job_path(job_id)}/logs", query, wait_s=_LOG_WAIT_S)
            page = (yield from self.asker.ask(request, retry_s=_PATIENCE_S)).json()
            for line in page["lines"]:
                yield Emit(LogLine(float(line["at"]), str(line["stream"]), str(line["text"])))
            if page["done"]:
                return
            after = str(page["next"])

    def cancel(self, job_id: str) -> Call[Snapshot]:
        """Ask for the end of a job; give it as it is then. A job that is over stays as it is."""
        return Snapshot((yield from self.asker.ask(Request("POST", f"{job_path(job_id)}/cancel"))).json())

    def retry(self, job_id: str, key: str | None = None) -> Call[Snapshot]:
        """Start the next generation of a job that is over, one only for each `key` (idempotency key)."""
        request = Request("POST", f"{job_path(job_id)}/retry", headers=_key_header(key))
        return Snapshot((yield from self.asker.ask(request)).json())

    def list(self, filters: Mapping[str, str | None], limit: int | None = None) -> Call[None]:
        """Emit every job that passes the filters (`state`, `function`, `since`, `reason`), newest first."""
        query = {name: value for name, value in filters.items() if value is not None}
        left = limit
        while left is None or left > 0:
            size = 500 if left is None else min(left, 500)
            response = yield from self.asker.ask(Request("GET", "/api/v1/jobs", query=query | {"limit": str(size)}))
            page = response.json()
            for data in page["jobs"][:left]:
                yield Emit(Snapshot(data))
            if left is not None:
                left -= len(page["jobs"])
            if not page.get("cursor"):
                return
            query["cursor"] = str(page["cursor"])


def job_path(job_id: str) -> str:
    """The path of a job below the service's address."""
    return f"/api/v1/jobs/{quote(job_id, safe='')}"


def rows(response: Response, name: str) -> list[dict[str, Any]]:
    """The entries of a list answer, which may stand under a name."""
    found = response.json()
    return list(found[name] if isinstance(found, dict) else found)


def _submission(
    verb: str,
    function: str,
    prepared: Body | dict[str, Any],
    params: Mapping[str, Any] | None,
    key: str | None,
    wait_s: float = 0.0,
) -> Request:
    headers = _key_header(key)
    path = f"/api/v1/functions/{quote(function, safe='')}/{verb}"
    query = {"timeout": f"{wait_s:.3f}"} if verb == "run" else {}
    described = _described(params)
    if isinstance(prepared, dict):
        body = {**prepared, "params": json.loads(described)}
        return Request("POST", path, query=query, headers=headers, json=body, wait_s=wait_s)
    name = prepared.name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    texts = {"params": described, "name": name}
    parts: tuple[tuple[str, str | Body], ...] = (*texts.items(), ("file", prepared))
    return Request("POST", path, query=query, headers=headers, parts=parts, wait_s=wait_s)


def _key_header(key: str | None) -> dict[str, str]:
    """The header of an idempotency key: the caller's, or one of our own, so that the call may be sent again."""
    if key is not None and not (key and key.isprintable()):
        raise InvalidSpec(f"{key!r} is no idempotency key.", hint="Give printable text of at most 256 bytes.")
    return {"Idempotency-Key": key or secrets.token_hex(16)}


def _described(params: Mapping[str, Any] | None) -> str:
    """Parameters as JSON text."""
    if not isinstance(params, Mapping | None):
        raise InvalidSpec(f"params is a {type(params).__name__}.", hint='Give names and values: params={"top_k": 3}.')
    try:
        return json.dumps(dict(params or {}), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidSpec(
            f"The params cannot be said in JSON: {error}.", hint="Give text, numbers, True, False, lists and mappings."
        ) from error


def _too_late(job: Snapshot, timeout: float) -> WaitTimeout:
    return WaitTimeout(
        f"Job {job.id} is {job.state} after a wait of {timeout:g} s.",
        hint=f"The job goes on; wait again with client.job({job.id!r}), or `tidemill job wait {job.id}`.",
        job_id=job.id,
        state=job.state,
    )
