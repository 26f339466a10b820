"""`hooks/s3/{store}`: bucket events. The secret is a bearer token, or the last part of the path.

Whoever has the secret always hears 200: a store that hears an error tries the same body again, and some then hold back
everything behind it. Junk is kept for the operator; what is too large is cut off unread.

Events come by the hundred a second, so `Hooks` answers them as plain ASGI, before the edge and the router would make a
request of each (a quarter of the CPU time). The routes tell /openapi.json of it.
"""

from __future__ import annotations

import secrets
import time
from typing import Any

from fastapi import APIRouter, Request
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from tidemill.errors import NotAllowed, NotFound, TidemillError
from tidemill_gateway.api.description import HOOK, OPEN
from tidemill_gateway.api.problems import of_error, problem, refusals
from tidemill_gateway.auth import bearer
from tidemill_gateway.auth.owners import same_secret
from tidemill_gateway.intake.webhook import MAX_BODY_BYTES
from tidemill_gateway.metrics import method_label
from tidemill_gateway.services import Services

PREFIX = "/hooks/s3/"
_METHODS = ("GET", "HEAD", "POST")
# Stores write events in several dialects, and what is none of them is taken too.
_EVENTS: dict[str, Any] = {"requestBody": {"content": {"application/json": {}}}}
_TAKEN: Message = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]}
_CUT_OFF: Message = {**_TAKEN, "headers": [(b"content-length", b"0"), (b"connection", b"close")]}
_END: Message = {"type": "http.response.body", "body": b""}


class Hooks:
    """An ASGI app for the paths below `PREFIX`: `STORE`, or `STORE/SECRET`."""

    def __init__(self, services: Services) -> None:
        self._store = services.store.name
        self._expected = services.gateway.hook_secret.get_secret_value()
        self._receiver = services.receiver
        self._requests = services.metrics.requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        store, slash, secret = scope["path"].removeprefix(PREFIX).partition("/")
        method, status = scope["method"], 200
        try:
            self._check(store, secret if slash else bearer(Headers(scope=scope).get("authorization")))
            if method == "POST":
                await send(await self._take(store, receive))
                await send(_END)
            elif method in _METHODS:  # a probe of the store
                await send(_TAKEN)
                await send(_END)
            else:
                status = 405
                hint = "Bucket events are sent by POST."
                said, allow = f"no {method} here", {"Allow": ", ".join(_METHODS)}
                refusal = problem(405, "method_not_allowed", said, hint, secrets.token_hex(8), allow)
                await refusal(scope, receive, send)
        except TidemillError as error:
            status = error.status
            await of_error(error, secrets.token_hex(8))(scope, receive, send)
        route = f"{PREFIX}{{store}}/{{secret}}" if slash else f"{PREFIX}{{store}}"
        self._requests.labels(method_label(method), route, str(status)).observe(time.perf_counter() - started)

    def _check(self, store: str, given: str | None) -> None:
        if not same_secret(given, self._expected):
            raise NotAllowed(
                "these bucket events carry a wrong secret, or none",
                hint="Give the store the value of TIDEMILL_GATEWAY__HOOK_SECRET as its token.",
            )
        if store != self._store:
            raise NotFound(f"there is no store {store}", hint=f"This gateway takes events at {PREFIX}{self._store}.")

    async def _take(self, store: str, receive: Receive) -> Message:
        parts: list[bytes] = []
        size, held, room, more = 0, 0, True, True
        try:
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    # Half a body; the store sends it again, or a listing finds the object.
                    return _CUT_OFF
                part, more = message.get("body", b""), message.get("more_body", False)
                size += len(part)
                if size > MAX_BODY_BYTES:
                    head = b"".join(parts)[:4096]
                    self._receiver.offer(store, head, f"larger than {MAX_BODY_BYTES} bytes")
                    return _CUT_OFF
                if room and more and (room := self._receiver.hold(len(part))):
                    held += len(part)
                if room:
                    parts.append(part)
                    continue
                # Read on, unkept: a store that is cut off would send it all again.
                parts.clear()
                self._receiver.let_go(held)
                held = 0
            if room:
                self._receiver.offer(store, part if len(parts) == 1 else b"".join(parts), held=held)
                held = 0
            else:
                self._receiver.turn_away()
            return _TAKEN
        finally:
            if held:
                self._receiver.let_go(held)


def routes(services: Services) -> APIRouter:
    meanings = {403: "A wrong secret, or none.", 404: "The gateway has another store."}
    router = APIRouter(
        prefix=PREFIX.rstrip("/"),
        tags=["events"],
        default_response_class=Response,
        responses=refusals(403, 404, meanings=meanings),
    )
    hooks = Hooks(services)

    @router.post("/{store}", summary="Bucket events, with a bearer token", openapi_extra=HOOK | _EVENTS)
    @router.get("/{store}", summary="Whether the token is right, for a store that asks first", openapi_extra=HOOK)
    async def by_header(store: str, request: Request) -> Response:
        return _Served(hooks)

    @router.post(
        "/{store}/{secret}", summary="Bucket events, with the secret in the path", openapi_extra=OPEN | _EVENTS
    )
    @router.get(
        "/{store}/{secret}", summary="Whether the secret is right, for a store that asks first", openapi_extra=OPEN
    )
    async def by_path(store: str, secret: str, request: Request) -> Response:
        return _Served(hooks)

    return router


class _Served(Response):
    """A response that another ASGI app gives."""

    def __init__(self, app: Hooks) -> None:
        super().__init__()
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)
