"""`functions`: list, show, deploy, delete."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.responses import Response

from tidemill.errors import InvalidSpec
from tidemill.models import FunctionRecord, FunctionSpec
from tidemill.models.files import check_spec
from tidemill_gateway.api import wire
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


def shown(record: FunctionRecord) -> dict[str, object]:
    return {"name": record.name, **wire.dump(record)}


def routes(services: Services) -> APIRouter:
    router = APIRouter(prefix="/api/v1/functions", tags=["functions"])

    @router.get("", summary="All functions")
    def list_functions() -> Response:
        functions = services.ledger.functions()
        return wire.of_value({"functions": [shown(functions[name]) for name in sorted(functions)]})

    @router.get("/{name}", summary="One function", responses={200: {"model": FunctionRecord}})
    def show_function(name: str) -> Response:
        return wire.of_value(shown(services.calls.function(name)))

    @router.put("/{name}", summary="Deploy a function", openapi_extra=_DEPLOY_BODY)
    async def deploy_function(name: str, request: Request) -> Response:
        async with request.form(max_files=1, max_fields=4) as form:
            spec = _spec(form, name)
            code = form.get("code")
            if code is not None and not isinstance(code, UploadFile):
                raise InvalidSpec("the part `code` is no file", hint="Send the folder as a tar.gz.")
            record = await run_in_threadpool(_deploy, spec, code, wire.owner_of(request))
        return wire.of_value(shown(record))

    @router.delete("/{name}", summary="Delete a function; running jobs may finish, waiting ones are cancelled")
    def delete_function(name: str) -> Response:
        return wire.of_value(shown(services.deployer.remove(services.calls.function(name).name)))

    def _deploy(spec: FunctionSpec, code: UploadFile | None, owner: Owner) -> FunctionRecord:
        if code is None:
            return services.deployer.deploy(spec, None, owner)
        with tempfile.TemporaryDirectory(prefix="tidemill-deploy-") as scratch:
            archive = Path(scratch, "code.tar.gz")
            with archive.open("xb") as into:
                shutil.copyfileobj(code.file, into, 2**20)
            return services.deployer.deploy(spec, archive, owner)

    return router


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
