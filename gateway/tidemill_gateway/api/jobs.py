"""`jobs`: list, show, results, cancel, retry; and what was ignored."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from tidemill.errors import InvalidSpec, NotFound
from tidemill.models import Job, JobState, OutputObject
from tidemill.models.base import parse_duration
from tidemill_gateway.api import answers, wire
from tidemill_gateway.api.problems import COMMON, refusals
from tidemill_gateway.services import Services

_LINK_S = 3600
_DIRECT_BYTES = 2**20
_DAMAGED = 100


def routes(services: Services) -> APIRouter:
    router = APIRouter(prefix="/api/v1", tags=["jobs"], responses=COMMON)

    @router.get("/jobs", summary="Jobs, newest first", responses={200: {"model": answers.JobPage}, **refusals(422)})
    def list_jobs(
        request: Request,
        state: JobState | None = None,
        function: str | None = None,
        since: str | None = None,
        reason: str | None = None,
        cursor: Annotated[str | None, Query(max_length=500)] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> Response:
        """`since`: seconds since 1970, an ISO time, or an age such as 2h. `reason`: the error's code."""
        try:
            page = services.ledger.jobs(
                state=state,
                function=function,
                since=_since(since, services.clock()),
                reason=reason,
                owner=wire.owner_of(request).name,
                cursor=cursor,
                limit=limit,
            )
        except ValueError as error:
            raise InvalidSpec("the cursor is not one of ours", hint="Leave it out to begin anew.") from error
        return wire.of_value({"jobs": [wire.dump(job) for job in page.jobs], "cursor": page.cursor})

    @router.get("/jobs/{job_id}", summary="One job", responses={200: {"model": Job}, **refusals(404, 422)})
    async def show_job(
        job_id: str,
        request: Request,
        wait: Annotated[float, Query(ge=0, le=60, allow_inf_nan=False)] = 0.0,
    ) -> Response:
        """With `wait`, the answer comes as soon as the job is over, or after that many seconds."""
        job = await run_in_threadpool(services.calls.job, wire.owner_of(request), job_id)
        if wait > 0 and not job.state.terminal:
            found = await services.feed.wait(job_id, wait)
            if found is not None and found.generation >= job.generation:
                job = found
        return wire.of_model(job)

    @router.get(
        "/jobs/{job_id}/outputs",
        summary="Results: a list with links, or the content of one by name",
        responses={
            # One by name has the type that its function gave it.
            200: {"model": answers.Outputs | Any, "content": {"*/*": {}}},
            307: {"description": "A large one, by name: `Location` is where the store gives it"},
            **refusals(403, 404),
        },
    )
    def outputs(job_id: str, request: Request, name: str | None = None) -> Response:
        job = services.calls.job(wire.owner_of(request), job_id)
        if name is None:
            return wire.of_value({"outputs": [_linked(output) for output in job.outputs]})
        for output in job.outputs:
            if _name(output) == name:
                return _content(output)
        raise NotFound(
            f"job {job_id} has no result {name!r}",
            hint="It has: " + (", ".join(map(_name, job.outputs[:20])) or f"none, it is {job.state}") + ".",
        )

    @router.post(
        "/jobs/{job_id}/cancel", summary="Ask for the end of a job", responses={200: {"model": Job}, **refusals(404)}
    )
    def cancel(job_id: str, request: Request) -> Response:
        return wire.of_model(services.calls.cancel(wire.owner_of(request), job_id))

    @router.post(
        "/jobs/{job_id}/retry",
        status_code=202,
        summary="Start the next generation of a job that is over",
        responses={202: {"model": Job}, **refusals(403, 404, 409, 422)},
        openapi_extra={"parameters": [wire.IDEMPOTENCY_KEY]},
    )
    def retry(job_id: str, request: Request) -> Response:
        key = wire.idempotency_key(request)
        return wire.of_model(services.calls.retry(wire.owner_of(request), job_id, key), 202)

    @router.get(
        "/ignored",
        summary="Objects under a trigger that are no job, and why; newest first",
        responses={200: {"model": answers.Ignored}, **refusals(422)},
    )
    def ignored(limit: Annotated[int, Query(ge=1, le=10_000)] = 1000) -> Response:
        rows = services.ledger.ignored(limit)
        return wire.of_value({"ignored": [{"bucket": b, "key": k, "reason": r, "at": at} for b, k, r, at in rows]})

    @router.get(
        "/damaged",
        summary="Records of the platform bucket that cannot be read, and were left out",
        responses={200: {"model": answers.Damaged}},
    )
    def damaged() -> Response:
        """The records of functions and pools are looked at now; others are those that a listing or a rebuild met."""
        record = services.record
        record.functions(), record.pools()
        met = [key for bucket, key, _, _ in services.ledger.ignored() if bucket == record.bucket]
        found = record.look_again([*record.damaged(), *met[:_DAMAGED]])
        return wire.of_value({"damaged": [{"key": key, "reason": why} for key, why in sorted(found.items())]})

    def _linked(output: OutputObject) -> dict[str, Any]:
        url = services.store.presign_get(output.bucket, output.key, _LINK_S)
        return {**wire.dump(output), "name": _name(output), "url": url}

    def _content(output: OutputObject) -> Response:
        """Small results come directly, large ones from the store."""
        if output.size > _DIRECT_BYTES:
            return RedirectResponse(services.store.presign_get(output.bucket, output.key, _LINK_S))
        content = services.store.get(output.bucket, output.key)
        # The content is a function's: a browser must neither run it nor guess what it is.
        headers = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox"}
        return Response(content, headers=headers, media_type=output.content_type or "application/octet-stream")

    return router


def _name(output: OutputObject) -> str:
    return output.name or output.key.rsplit("/", 1)[-1]


def _since(text: str | None, now: float) -> float | None:
    if text is None or not text.strip():
        return None
    try:
        value = float(text)
    except ValueError:
        return _moment(text.strip(), now)
    if not 0 <= value < 1e12:
        raise InvalidSpec(f"since: {text} are no seconds since 1970")
    return value


def _moment(text: str, now: float) -> float:
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        try:
            return now - float(parse_duration(text))
        except (ValueError, OverflowError) as error:
            hint = "Write seconds since 1970, a time such as 2026-11-30T12:00, or an age such as 2h."
            raise InvalidSpec(f"since: {text[:80]!r} is no time", hint=hint) from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).timestamp()
