"""Whether an answer is one that the gateway's /openapi.json declares: status, content type and shape."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Any

import httpx
from pydantic import TypeAdapter

from tidemill import models
from tidemill_gateway.api import answers, problems

_SHAPES = vars(models) | vars(answers) | vars(problems)
_PARAMETER = re.compile(r"\\\{[a-z_]+\\\}")


class Description:
    """An OpenAPI document."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self._paths = [
            (re.compile(_PARAMETER.sub("[^/]+", re.escape(path))), operations)
            for path, operations in document["paths"].items()
        ]

    def operations(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Give method, path (with its parameters) and operation of each."""
        paths = self.document["paths"].items()
        return [(method.upper(), path, found) for path, methods in paths for method, found in methods.items()]

    def methods(self, path: str) -> set[str]:
        """Give the methods of a path, without parameters in it."""
        return {method.upper() for pattern, found in self._paths if pattern.fullmatch(path) for method in found}

    def client(self, url: str, headers: dict[str, str]) -> httpx.Client:
        """Give a client that checks each answer. Time-out 30 s."""
        return httpx.Client(base_url=url, headers=headers, timeout=30, event_hooks={"response": [self.check]})

    def check(self, answer: httpx.Response) -> None:
        """Raises `AssertionError` for an answer of a known operation that it does not declare."""
        request = answer.request
        for pattern, operations in self._paths:
            # The raw path: a name may hold an escaped slash.
            if pattern.fullmatch(request.url.raw_path.decode().partition("?")[0]):
                operation = operations.get(request.method.lower())
                if operation is not None:
                    _check(answer, operation["responses"], f"{request.method} {request.url.path}: {answer.status_code}")
                return


def _check(answer: httpx.Response, declared: dict[str, Any], what: str) -> None:
    assert str(answer.status_code) in declared, f"{what} is not among {sorted(declared)}"
    content = declared[str(answer.status_code)].get("content", {})
    given = answer.headers.get("content-type", "").partition(";")[0]
    if not content:
        assert not given, f"{what} has a {given}, and none is declared"
        return
    assert any(fnmatchcase(given, pattern) for pattern in content), f"{what} has a {given!r}, declared is {[*content]}"
    if given.endswith("json") and (schema := content.get(given, {}).get("schema")):
        answer.read()
        names = [found["$ref"].rpartition("/")[2] for found in schema.get("anyOf", [schema]) if "$ref" in found]
        if names and {} not in schema.get("anyOf", []):
            _check_shape(answer.content, names)


def _check_shape(body: bytes, names: list[str]) -> None:
    """One of these models must take it. All but `Problem` refuse members that they do not have."""
    faults = []
    for name in names:
        try:
            TypeAdapter(_SHAPES[name]).validate_json(body)
        except ValueError as error:
            faults.append(str(error))
    assert len(faults) < len(names), "\n".join(faults)
