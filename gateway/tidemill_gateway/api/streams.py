"""`jobs/{id}/logs` and `jobs/{id}/events`: what a job says while it runs.

Events are server-sent: `job` (the whole job, first and last), `state` (a transition; its id is the ledger's position,
so `Last-Event-ID` resumes without a gap), `progress`. The stream ends with the job.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from tidemill.errors import InvalidSpec
from tidemill.ledger.api import Ledger, LogLine, Transition
from tidemill.models import Job, Progress
from tidemill_gateway.api import answers, wire
from tidemill_gateway.api.problems import COMMON, refusals
from tidemill_gateway.feed import Feed
from tidemill_gateway.services import Services

_POLL_S = 0.25
_TICK_S = 1.0
_SILENT_TICKS = 15
_POSITION = r"^[0-9]{1,20}(-[0-9]{1,20})?$"
_EVENT = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {
        "id": {"type": "string"},
        "event": {"enum": ["job", "state", "progress"]},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
}
_LAST_EVENT_ID = {
    "name": "Last-Event-ID",
    "in": "header",
    "required": False,
    "description": "The last id that was heard: the stream goes on after it. Any other text is as none.",
    "schema": {"type": "string"},
}


def routes(services: Services) -> APIRouter:
    router = APIRouter(prefix="/api/v1/jobs/{job_id}", tags=["jobs"], responses=COMMON)

    @router.get(
        "/logs",
        summary="What a job printed, as text or JSON",
        responses={
            200: {"model": answers.Log, "content": {"text/plain": {"schema": {"type": "string"}}}},
            **refusals(404, 422),
        },
    )
    async def logs(
        job_id: str,
        request: Request,
        after: Annotated[str, Query(pattern=_POSITION)] = "0",
        wait: Annotated[float, Query(ge=0, le=60, allow_inf_nan=False)] = 0.0,
        format: Annotated[str | None, Query(pattern="^(text|json)$")] = None,
    ) -> Response:
        """Following: ask for `format=json&after=NEXT&wait=20` again until `done`."""
        if not _possible(after):
            raise InvalidSpec(f"after: {after} is no position of a log", hint="Send `next` of the last answer.")
        job = await run_in_threadpool(services.calls.job, wire.owner_of(request), job_id)
        as_json = format == "json" or (format is None and "application/json" in request.headers.get("accept", ""))
        lines, job = await _lines(job, after, wait)
        stored = None
        if after == "0" and job.state.terminal:
            # The whole log; the ledger's is cut, lacks what a flood outran, and may be gone.
            record = services.record
            stored = await run_in_threadpool(record.get_log, job.function, job_id, job.generation)
        if not as_json:
            texts = [x.text for x in lines] if stored is None else [text for _, text in _parts(stored)]
            text = "".join(f"{text}\n" for text in texts)
            return PlainTextResponse(text, headers={"X-Content-Type-Options": "nosniff"})
        rows = [{"position": x.position, "at": x.at, "stream": x.stream, "text": x.text} for x in lines]
        if stored is not None:
            at = job.finished_at or job.created_at
            rows = [{"position": "0", "at": at, "stream": stream, "text": text} for stream, text in _parts(stored)]
        position = lines[-1].position if lines else after
        done = job.state.terminal and (stored is not None or not lines)
        return wire.of_value({"lines": rows, "next": position, "done": done})

    async def _lines(job: Job, after: str, wait_s: float) -> tuple[list[LogLine], Job]:
        clock = asyncio.get_running_loop().time
        give_up = clock() + wait_s
        while True:
            lines = await run_in_threadpool(services.ledger.log, job.id, after)
            if lines or job.state.terminal or clock() >= give_up:
                return lines, job
            await asyncio.sleep(_POLL_S)
            job = await _again(services.ledger, job)

    @router.get(
        "/events",
        summary="The life of a job as server-sent events",
        response_class=StreamingResponse,
        responses={200: {"content": {"text/event-stream": {"itemSchema": _EVENT}}}, **refusals(404)},
        openapi_extra={"parameters": [_LAST_EVENT_ID]},
    )
    async def events(job_id: str, request: Request) -> Response:
        job = await run_in_threadpool(services.calls.job, wire.owner_of(request), job_id)
        last = request.headers.get("last-event-id", "")
        resume = last if _possible(last) else None
        body = _events(services.ledger, services.feed, job, resume)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(body, headers=headers, media_type="text/event-stream")

    return router


def _possible(position: str) -> bool:
    """Whether Redis takes it: one number or two, each of 64 bits, and something can come after it."""
    return re.fullmatch(_POSITION, position) is not None and all(int(n) < 2**64 - 1 for n in position.split("-"))


async def _events(ledger: Ledger, feed: Feed, job: Job, resume: str | None) -> AsyncIterator[str]:
    if job.state.terminal and resume is None:
        yield _sse("job", wire.dump(job))
        return
    async with feed.subscribe(job.id) as lines:
        position = resume or await run_in_threadpool(ledger.last_position)
        job = await _again(ledger, job)
        yield _sse("job", wire.dump(job), position)
        sent: set[str] = set()
        if resume is not None:
            for line in await run_in_threadpool(_missed, ledger, job.id, resume):
                sent.add(line.position)
                yield _sse("state", _shown(line), line.position)
        progress, silent = job.progress, 0
        while not job.state.terminal:
            try:
                async with asyncio.timeout(_TICK_S):
                    line = await lines.get()
                if line.position not in sent:
                    yield _sse("state", _shown(line), line.position)
                if not line.state.terminal:
                    continue
            except TimeoutError:
                silent += 1
            job = await _again(ledger, job)
            if job.progress is not None and job.progress != progress:
                progress, silent = job.progress, 0
                yield _sse("progress", _progress(progress))
            if silent >= _SILENT_TICKS:
                silent = 0
                yield ": still here\n\n"
        yield _sse("job", wire.dump(job))


def _parts(stored: bytes) -> list[tuple[str, str]]:
    """Stream and text of each line of a stored log (`stream: text`; a note about dropped lines has no stream)."""
    found = []
    for line in stored.decode("utf-8", "replace").removesuffix("\n").split("\n"):
        stream, colon, text = line.partition(": ")
        found.append((stream, text) if colon and stream.isidentifier() else ("log", line))
    return found


async def _again(ledger: Ledger, job: Job) -> Job:
    """The job as it is now; as it was, when the ledger has forgotten it."""
    found = await run_in_threadpool(ledger.job, job.id)
    return found if found is not None else job


def _missed(ledger: Ledger, job_id: str, after: str) -> list[Transition]:
    """The lines of a job since a position; the stream is capped, so this ends."""
    found: list[Transition] = []
    while page := ledger.transitions(after):
        found += [line for line in page if line.job_id == job_id]
        after = page[-1].position
    return found


def _shown(line: Transition) -> dict[str, Any]:
    facts = {"job_id": line.job_id, "function": line.function, "state": line.state.value, "at": line.at}
    return {**facts, "attempt": line.attempt, "generation": line.generation, "agent": line.agent, "error": line.error}


def _progress(progress: Progress) -> dict[str, Any]:
    return wire.dump(progress)


def _sse(event: str, data: dict[str, Any], position: str | None = None) -> str:
    identity = f"id: {position}\n" if position is not None else ""
    return f"{identity}event: {event}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"
