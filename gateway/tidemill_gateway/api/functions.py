"""`functions`: list, show, deploy, delete."""

from __future__ import annotations

import re
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.responses import Response

from tidemill.errors import InvalidSpec
from tidemill.models import FunctionRecord, FunctionSpec
from tidemill.models.files import check_spec
from tidemill_gateway.api import answers, wire
from tidemill_gateway.api.problems import COMMON, refusals
from tidemill_gateway.auth import Owner
from tidemill_gateway.services import Services

_DEPLOY_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["spec"],
                    "properties": {
                        "spec": {"type": "string", "contentMediaType": "application/json"},
                        "code": {"type": "string", "format": "binary"},
                    },
                }
            }
        },
    }
}

_CURSOR = "[0-9a-f]{32}"
_REPLAY_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "prefix": {"type": "string", "maxLength": 1024, "default": ""},
                        "failed_only": {"type": "boolean", "default": False},
                        "dry_run": {"type": "boolean", "default": False},
                        "cursor": {"type": "string", "pattern": f"^{_CURSOR}$"},
                    },
                }
            }
        },
    }
}


_SHOWN = {"model": answers.FunctionShown}


def shown(record: FunctionRecord) -> dict[str, object]:
    return {"name": record.name, **wire.dump(record)}


def routes(services: Services) -> APIRouter:
    router = APIRouter(prefix="/api/v1/functions", tags=["functions"], responses=COMMON)

    @router.get("", summary="All functions", responses={200: {"model": answers.Functions}})
    def list_functions() -> Response:
        functions = services.ledger.functions()
        return wire.of_value({"functions": [shown(functions[name]) for name in sorted(functions)]})

    @router.get("/{name}", summary="One function", responses={200: _SHOWN, **refusals(404)})
    def show_function(name: str) -> Response:
        return wire.of_value(shown(services.calls.function(name)))

    @router.put(
        "/{name}",
        summary="Deploy a function",
        responses={200: _SHOWN, **refusals(400, 403, 422)},
        openapi_extra=_DEPLOY_BODY,
    )
    async def deploy_function(name: str, request: Request) -> Response:
        async with request.form(max_files=1, max_fields=4) as form:
            spec = _spec(form, name)
            code = form.get("code")
            if code is not None and not isinstance(code, UploadFile):
                raise InvalidSpec("the part `code` is no file", hint="Send the folder as a tar.gz.")
            record = await run_in_threadpool(_deploy, spec, code, wire.owner_of(request))
        return wire.of_value(shown(record))

    @router.delete(
        "/{name}",
        summary="Delete a function; running jobs may finish, waiting ones are cancelled",
        responses={200: _SHOWN, **refusals(404)},
    )
    def delete_function(name: str) -> Response:
        return wire.of_value(shown(services.deployer.remove(services.calls.function(name).name)))

    @router.post(
        "/{name}/replay",
        status_code=202,
        summary="Start jobs for objects that were there before the trigger, or failed jobs once more",
        responses={
            200: {"model": answers.Replay, "description": "What a `dry_run` would do"},
            202: {"model": answers.Replay},
            **refusals(403, 404, 422),
        },
        openapi_extra=_REPLAY_BODY,
    )
    async def replay(name: str, request: Request) -> Response:
        data = await wire.body_object(request)
        owner, prefix = wire.owner_of(request), _text(data, "prefix") or ""
        failed_only, dry_run = _flag(data, "failed_only"), _flag(data, "dry_run")
        if failed_only:
            done = await run_in_threadpool(
                services.replays.failed, owner, name, prefix, dry_run=dry_run, cursor=_cursor(data)
            )
        else:
            done = await run_in_threadpool(services.replays.objects, owner, name, prefix, dry_run=dry_run)
        return wire.of_value({"function": name, "dry_run": dry_run, **asdict(done)}, 200 if dry_run else 202)

    def _deploy(spec: FunctionSpec, code: UploadFile | None, owner: Owner) -> FunctionRecord:
        if code is None:
            return services.deployer.deploy(spec, None, owner)
        with tempfile.TemporaryDirectory(prefix="tidemill-deploy-") as scratch:
            archive = Path(scratch, "code.tar.gz")
            with archive.open("xb") as into:
                shutil.copyfileobj(code.file, into, 2**20)
            return services.deployer.deploy(spec, archive, owner)

    return router


def _text(data: dict[str, Any], name: str) -> str | None:
    value = data.get(name)
    if value is not None and (not isinstance(value, str) or len(value.encode()) > 1024):
        raise InvalidSpec(f"{name} is no text of at most 1024 bytes")
    return value


def _flag(data: dict[str, Any], name: str) -> bool:
    value = data.get(name, False)
    if not isinstance(value, bool):
        raise InvalidSpec(f"{name} is neither true nor false")
    return value


def _cursor(data: dict[str, Any]) -> str | None:
    cursor = _text(data, "cursor")
    if cursor is not None and not re.fullmatch(_CURSOR, cursor):
        raise InvalidSpec("the cursor is not one of ours", hint="Leave it out to begin anew.")
    return cursor


def _spec(form: FormData, name: str) -> FunctionSpec:
    text = form.get("spec")
    if isinstance(text, UploadFile):
        text = text.file.read(2**20).decode("utf-8", "replace")
    if not isinstance(text, str):
        raise InvalidSpec(
            "the part `spec` is missing", hint="Send the function's spec as JSON in the form part `spec`."
        )
    spec = check_spec(wire.parse_object(text, "the part `spec`"))
    if spec.name != name:
        raise InvalidSpec(f"the spec is of {spec.name}, but the address says {name}", hint="Make both the same.")
    return spec
