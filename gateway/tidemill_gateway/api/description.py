"""What /openapi.json says of all routes at once: the tokens, and that refusals are problem documents.

Each route says itself how it may refuse (`problems.refusals`); `tests/support/described.py` holds every answer of the
integration tests against that.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from tidemill_gateway.api.problems import Problem

_TOKEN, _HOOK = "token", "hook_secret"
# `openapi_extra` of routes that want another secret than the token, or none.
OPEN: dict[str, Any] = {"security": []}
HOOK: dict[str, Any] = {"security": [{_HOOK: []}]}
_SCHEMES = {
    _TOKEN: {"type": "http", "scheme": "bearer", "description": "What `tidemill env` prints as TIDEMILL_TOKEN."},
    _HOOK: {
        "type": "http",
        "scheme": "bearer",
        "description": "TIDEMILL_GATEWAY__HOOK_SECRET; also without the word Bearer, for stores that send it so.",
    },
}


class Described(FastAPI):
    """An app whose description is true of the edge and of `problems` too."""

    def openapi(self) -> dict[str, Any]:
        if not self.openapi_schema:
            self.openapi_schema = _completed(super().openapi())
        return self.openapi_schema


def _completed(document: dict[str, Any]) -> dict[str, Any]:
    document["security"] = [{_TOKEN: []}]
    components = document["components"]
    components["securitySchemes"] = _SCHEMES
    components["schemas"]["Problem"] = Problem.model_json_schema()
    # FastAPI names its own 422 wherever a path has a parameter, though `problems` answers in its place.
    for path in document["paths"].values():
        for operation in path.values():
            if "HTTPValidationError" in str(operation["responses"].get("422")):
                del operation["responses"]["422"]
    for name in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(name, None)
    return document
