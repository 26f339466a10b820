"""Reading requests and writing answers: JSON in and out without a second validation, the owner of a request."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from fastapi import Request
from pydantic import BaseModel
from pydantic_core import from_json
from starlette.responses import Response

from tidemill.errors import InvalidSpec
from tidemill_gateway.auth import Owner

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_KEY_BYTES = 256
# Parameter and fields as OpenAPI has them.
IDEMPOTENCY_KEY: dict[str, Any] = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": _KEY_BYTES},
}
BUCKET: dict[str, Any] = {"type": "string", "pattern": f"^{_BUCKET.pattern}$"}
KEY: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": 1024}


def idempotency_key(request: Request) -> str | None:
    """Give the caller's idempotency key, if there is one. Raises `InvalidSpec` when it is empty or too long."""
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key.encode("utf-8", "replace")) <= _KEY_BYTES:
        raise InvalidSpec(f"an Idempotency-Key has 1 to {_KEY_BYTES} bytes")
    return key


def owner_of(request: Request) -> Owner:
    """Give the owner whose token the request carried."""
    owner = request.state.owner
    assert isinstance(owner, Owner)
    return owner


def of_model(model: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(model.model_dump_json(), status, headers, "application/json")


def of_value(value: Any, status: int = 200) -> Response:
    """Answer with plain JSON values."""
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return Response(body, status, media_type="application/json")


def dump(model: BaseModel) -> dict[str, Any]:
    return model.model_dump(mode="json")


def parse_object(text: str | bytes, what: str) -> dict[str, Any]:
    """Give a JSON object.

    Raises:
        InvalidSpec: it is none. NaN, infinities and half surrogates are refused: no store could give them back.
    """
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidSpec(f"{what} is not JSON: {str(error)[:200]}", hint="Send a JSON object.") from error
    if not isinstance(value, dict):
        raise InvalidSpec(f"{what} is no JSON object", hint="Send a JSON object.")
    return value


async def body_object(request: Request) -> dict[str, Any]:
    """Give the body as a JSON object. Raises as `parse_object`."""
    return parse_object(await request.body(), "the body")


def text_field(data: Mapping[str, Any], name: str, *, longest: int = 1024) -> str:
    """Give a required text of a body. Raises `InvalidSpec`."""
    value = data.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidSpec(f"{name} is missing, or no text")
    if len(value.encode()) > longest:
        raise InvalidSpec(f"{name} is longer than {longest} bytes")
    return value


def bucket_field(data: Mapping[str, Any]) -> str:
    """Give the bucket that a body names. Raises `InvalidSpec` for what can be none."""
    bucket = text_field(data, "bucket", longest=63)
    if not _BUCKET.fullmatch(bucket):
        raise InvalidSpec(
            f"{bucket!r} is no bucket name", hint="Bucket names have 3 to 63 of: small letters, digits, dots, hyphens."
        )
    return bucket
