"""Errors as problem documents (RFC 9457), with `code`, `hint` and `request_id` beside the standard members."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from tidemill.errors import InvalidSpec, ServiceUnavailable, TidemillError

MEDIA_TYPE = "application/problem+json"
_CODES = {400: "invalid_spec", 404: "not_found", 405: "method_not_allowed", 413: "too_large"}
log = structlog.get_logger(__name__)


class TooLarge(InvalidSpec):
    """A body above the limit."""

    code = "too_large"
    status = 413
    default_hint = "Send larger files through a presigned upload (POST /api/v1/uploads), and name the object."


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
        return problem(error.status_code, code, str(error.detail), hint, _id(request), error.headers)

    app.add_exception_handler(TidemillError, ours)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)


def _sentence(faults: Sequence[Any]) -> str:
    parts = [f"{'.'.join(map(str, fault.get('loc', ())))}: {fault.get('msg', 'is wrong')}" for fault in faults[:5]]
    return "; ".join(parts) or "the request is not valid"


def _id(request: Request) -> str:
    return str(request.scope.get("state", {}).get("request_id", ""))
