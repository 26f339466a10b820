"""Errors as problem documents (RFC 9457), with `code`, `hint` and `request_id` beside the standard members."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from tidemill.errors import InvalidSpec, ServiceUnavailable, TidemillError

MEDIA_TYPE = "application/problem+json"
# What each status of a refusal means here, for /openapi.json.
_MEANINGS = {
    400: "The form cannot be read.",
    401: "There is no token, or one that is not known.",
    403: "Not allowed: a bucket of somebody else, the platform bucket, or one that the store refuses to Tidemill.",
    404: "What the path or the body names does not exist.",
    409: "Something is in the way: other content under the same key, or a state that forbids it.",
    413: "The body is larger than the limit.",
    422: "A parameter or the body is wrong; `detail` names the place.",
    500: "A damaged record, or a fault of the gateway's own, which its log has under the `request_id`.",
    503: "Redis or the store does not answer, is being restored, or is full. Ask again.",
}
_HEADERS = {
    401: {"WWW-Authenticate": {"schema": {"type": "string"}}},
    503: {"Retry-After": {"description": "In seconds.", "schema": {"type": "integer"}}},
}
_METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
_CODES = {400: "invalid_spec", 404: "not_found", 405: "method_not_allowed", 413: "too_large"}
log = structlog.get_logger(__name__)


class TooLarge(InvalidSpec):
    """A body above the limit."""

    code = "too_large"
    status = 413
    default_hint = "Send larger files through a presigned upload (POST /api/v1/uploads), and name the object."


class Problem(BaseModel):
    """A refusal (RFC 9457). `code` is stable; `hint` says what to do; the gateway's log has `request_id`."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    hint: str
    request_id: str


def refusals(*statuses: int, meanings: Mapping[int, str] | None = None) -> dict[int | str, dict[str, Any]]:
    """Give the `responses` of a route that may refuse with these statuses; `meanings` says more than the usual."""
    said = _MEANINGS | dict(meanings or {})
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        status: {
            "description": said[status],
            "content": {MEDIA_TYPE: {"schema": schema}},
            **({"headers": _HEADERS[status]} if status in _HEADERS else {}),
        }
        for status in statuses
    }


# Those of every route that wants the token.
COMMON = refusals(401, 413, 500, 503)


def problem(
    status: int, code: str, detail: str, hint: str, request_id: str, headers: Mapping[str, str] | None = None
) -> Response:
    document = {
        "type": f"urn:tidemill:error:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": code,
        "hint": hint,
        "request_id": request_id,
    }
    body = json.dumps(document, ensure_ascii=False).encode("utf-8", "replace")
    return Response(body, status, headers, MEDIA_TYPE)


def of_error(error: TidemillError, request_id: str) -> Response:
    """Give the answer for an error of our tree."""
    # Retry-After in whole seconds: what is unavailable now is asked again soon.
    headers = {"Retry-After": "1"} if isinstance(error, ServiceUnavailable) else None
    return problem(error.status, error.error_code, error.message, error.hint, request_id, headers)


def of_crash(request_id: str) -> Response:
    """Give the answer for a fault of ours; the log has it under the same request id."""
    return problem(
        500, TidemillError.code, "the gateway met an error of its own", TidemillError.default_hint, request_id
    )


def install(app: FastAPI) -> None:
    """Answer every error that a route raises with a problem document."""

    async def ours(request: Request, error: Exception) -> Response:
        assert isinstance(error, TidemillError)
        if error.status >= 500:
            log.warning("http.unavailable", code=error.error_code, error=error.message, request_id=_id(request))
        return of_error(error, _id(request))

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return of_error(InvalidSpec(_sentence(error.errors())), _id(request))

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = _CODES.get(error.status_code, "invalid_spec")
        hint = "GET /openapi.json lists every path and method."
        headers = dict(error.headers or {})
        if error.status_code == 405:
            headers["Allow"] = ", ".join(_methods(app, request.scope))
        return problem(error.status_code, code, str(error.detail), hint, _id(request), headers)

    app.add_exception_handler(TidemillError, ours)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)


def _methods(app: FastAPI, scope: Scope) -> list[str]:
    """All methods of a path: the router names only those of the first route that has it."""

    def taken(method: str) -> bool:
        return any(route.matches({**scope, "method": method})[0] is Match.FULL for route in app.routes)

    return [method for method in _METHODS if taken(method)]


def _sentence(faults: Sequence[Any]) -> str:
    parts = [f"{'.'.join(map(str, fault.get('loc', ())))}: {fault.get('msg', 'is wrong')}" for fault in faults[:5]]
    return "; ".join(parts) or "the request is not valid"


def _id(request: Request) -> str:
    return str(request.scope.get("state", {}).get("request_id", ""))
