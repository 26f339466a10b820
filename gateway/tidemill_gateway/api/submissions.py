"""`functions/{name}/jobs` and `/run`, and `uploads`: what starts jobs.

A call is a multipart form (`file`, one job each; `params` as JSON text; `name` overrides a file's name), or a JSON body
`{"bucket", "key", "version_id"?, "params"?}` that names an object.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.responses import Response

from tidemill.errors import InvalidSpec, NotFound
from tidemill.models import Job, JobState
from tidemill_gateway.api import answers, wire
from tidemill_gateway.api.problems import COMMON, refusals
from tidemill_gateway.calls import Call, Named, Payload
from tidemill_gateway.services import Services

_MAX_FILES = 1000
_INLINE_BYTES = 256 * 1024
_RESULT = "result.json"
_UPLOAD_S = 3600
_OBJECT_FIELDS = frozenset({"bucket", "key", "version_id", "params"})
_CALL_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {
                        "file": {"type": "array", "items": {"type": "string", "format": "binary"}},
                        "params": {"type": "string", "contentMediaType": "application/json"},
                        "name": {"type": "array", "items": {"type": "string"}},
                    },
                }
            },
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["bucket", "key"],
                    "additionalProperties": False,
                    "properties": {
                        "bucket": wire.BUCKET,
                        "key": wire.KEY,
                        "version_id": {"type": "string"},
                        "params": {"type": "object"},
                    },
                }
            },
        },
    },
    "parameters": [wire.IDEMPOTENCY_KEY],
}
_REFUSED = refusals(400, 403, 404, 409, 422)
_UPLOAD_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["bucket", "key"],
                    "properties": {
                        "bucket": wire.BUCKET,
                        "key": wire.KEY,
                        "size": {"type": "integer"},
                        "content_type": {"type": "string"},
                    },
                }
            }
        },
    }
}


def routes(services: Services) -> APIRouter:
    router = APIRouter(prefix="/api/v1", tags=["jobs"], responses=COMMON)

    @router.post(
        "/functions/{name}/jobs",
        status_code=202,
        summary="Submit a job for each file, or one for a named object",
        responses={202: {"model": Job | answers.Jobs}, **_REFUSED},
        openapi_extra=_CALL_BODY,
    )
    async def submit(name: str, request: Request) -> Response:
        owner = wire.owner_of(request)
        async with _calls(request, name) as calls:
            jobs = [await run_in_threadpool(services.calls.accept, owner, call) for call in calls]
        if len(jobs) == 1:
            return wire.of_model(jobs[0], 202, {"Location": f"/api/v1/jobs/{jobs[0].id}"})
        return wire.of_value({"jobs": [wire.dump(job) for job in jobs]}, 202)

    @router.post(
        "/functions/{name}/run",
        summary="Submit one job and wait for it; 202 when it is not over in time",
        responses={
            200: {"model": answers.Ran},
            202: {"model": answers.Ran, "description": "The job goes on"},
            **_REFUSED,
        },
        openapi_extra=_CALL_BODY,
    )
    async def run(
        name: str,
        request: Request,
        timeout: Annotated[float, Query(ge=0, le=3600, allow_inf_nan=False)] = 60.0,
    ) -> Response:
        owner = wire.owner_of(request)
        async with _calls(request, name) as calls:
            if len(calls) != 1:
                raise InvalidSpec("run takes one file", hint="Submit several with POST .../jobs, and wait for each.")
            accepted = await run_in_threadpool(services.calls.accept, owner, calls[0])
        job = accepted if accepted.state.terminal else await services.feed.wait(accepted.id, timeout) or accepted
        answer: dict[str, Any] = {"job": wire.dump(job), "result_inline": False, "result": None}
        if job.state is JobState.succeeded:
            found, value = await run_in_threadpool(_inline, job)
            answer |= {"result_inline": found, "result": value}
        return wire.of_value(answer, 200 if job.state.terminal else 202)

    @router.post(
        "/uploads",
        summary="An address to PUT an object to",
        responses={200: {"model": answers.UploadAddress}, **refusals(403, 404, 422)},
        openapi_extra=_UPLOAD_BODY,
    )
    async def upload(request: Request) -> Response:
        data = await wire.body_object(request)
        bucket, key = wire.bucket_field(data), wire.text_field(data, "key")
        content_type = data.get("content_type")
        if bucket == services.record.bucket:
            raise InvalidSpec(f"the platform bucket {bucket} takes no uploads", hint="Use a bucket of your own.")
        wire.owner_of(request).check_bucket(bucket)
        if not await run_in_threadpool(services.store.bucket_exists, bucket):
            raise NotFound(f"there is no bucket {bucket}", hint="Deploying a function makes the buckets that it names.")
        url = await run_in_threadpool(services.store.presign_put, bucket, key, _UPLOAD_S)
        headers = {"Content-Type": content_type} if isinstance(content_type, str) and content_type else {}
        expires_at = services.clock() + _UPLOAD_S
        return wire.of_value({"url": url, "method": "PUT", "headers": headers, "expires_at": expires_at})

    def _inline(job: Job) -> tuple[bool, Any]:
        """The value of `result.json`, when it is small: it saves the caller a request."""
        for output in job.outputs:
            if (output.name or output.key.rsplit("/", 1)[-1]) == _RESULT and output.size <= _INLINE_BYTES:
                try:
                    return True, json.loads(services.store.get(output.bucket, output.key))
                except (ValueError, NotFound):
                    return False, None  # a file of the function's own with this name, or deleted since
        return False, None

    return router


@asynccontextmanager
async def _calls(request: Request, function: str) -> AsyncIterator[list[Call]]:
    """The calls that a request makes; its files live until the block ends."""
    key = wire.idempotency_key(request)
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        yield [_named(await wire.body_object(request), function, key)]
        return
    async with request.form(max_files=_MAX_FILES, max_fields=_MAX_FILES + 8) as form:
        files = [value for _, value in form.multi_items() if isinstance(value, UploadFile)]
        names = [value for value in form.getlist("name") if isinstance(value, str)]
        text = form.get("params")
        params = wire.parse_object(text, "the part `params`") if isinstance(text, str) and text.strip() else {}
        if not files:
            raise InvalidSpec("the form has no file", hint="Send the input as a file in the form part `file`.")
        yield [
            Call(function, _payload(file, names[i] if i < len(names) else None), params, _key_of(key, i, len(files)))
            for i, file in enumerate(files)
        ]


def _named(data: dict[str, Any], function: str, key: str | None) -> Call:
    if unknown := sorted(set(data) - _OBJECT_FIELDS):
        raise InvalidSpec(f"unknown: {', '.join(unknown)[:200]}", hint="An object is named by bucket, key, version_id.")
    version = data.get("version_id")
    if version is not None and not isinstance(version, str):
        raise InvalidSpec("version_id is no text")
    named = Named(wire.bucket_field(data), wire.text_field(data, "key"), version)
    return Call(function, named, {} if data.get("params") is None else data["params"], key)


def _payload(file: UploadFile, name: str | None) -> Payload:
    return Payload(name or file.filename or "file", file.file, file.content_type)


def _key_of(key: str | None, index: int, files: int) -> str | None:
    """Several files of one call have one key between them: each gets its own from its place."""
    return key if key is None or files == 1 else f"{key}#{index}"
