"""What happens to every request before a route sees it: an id, the owner of its token, a limit of its body; and after:
one log line, one measurement, and a problem document for what nobody caught.

Open without a token: `/healthz`. Bucket events carry their own secret and have their own limit: `hooks` answers them
at once.
"""

from __future__ import annotations

import re
import secrets
import time

import structlog
from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidemill.errors import NotAllowed
from tidemill_gateway.api.hooks import PREFIX as HOOKS
from tidemill_gateway.api.problems import TooLarge, of_crash, of_error, problem
from tidemill_gateway.auth import Owners, bearer
from tidemill_gateway.metrics import Metrics, method_label

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PLAIN_BYTES = 2 * 2**20
_FORM_OVERHEAD = 2**20
log = structlog.get_logger(__name__)


class Edge:
    """An ASGI middleware."""

    def __init__(
        self, app: ASGIApp, *, owners: Owners, metrics: Metrics, hooks: ASGIApp, max_upload: int, landing: str
    ) -> None:
        self._app = app
        self._owners = owners
        self._metrics = metrics
        self._hooks = hooks
        self._max_upload = max_upload
        self._landing = landing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"].startswith(HOOKS):
            await self._hooks(scope, receive, send)
            return
        started = time.perf_counter()
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        status = 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            refusal = self._admit(scope, headers, state)
            if refusal is not None:
                await refusal(scope, receive, answer)
            else:
                await self._app(scope, self._limited(scope, headers, receive), answer)
        except TooLarge as error:
            if status == 0:
                await of_error(error, request_id)(scope, receive, answer)
        except Exception:
            log.exception("http.failed", method=scope["method"], route=_route(scope), request_id=request_id)
            if status == 0:
                await of_crash(request_id)(scope, receive, answer)
        self._note(scope, status, time.perf_counter() - started, request_id)

    def _admit(self, scope: Scope, headers: Headers, state: dict[str, object]) -> Response | None:
        path = scope["path"]
        if path == "/healthz":
            return None
        owner = self._owners.resolve(bearer(headers.get("authorization")))
        if owner is not None:
            state["owner"] = owner
            return None
        challenge = {"WWW-Authenticate": 'Bearer realm="tidemill"'}
        if path == "/":  # a browser cannot send the token: tell its user what this is
            return HTMLResponse(self._landing, 401, challenge)
        said = "the token is not known" if "authorization" in headers else "a token is needed"
        return problem(401, NotAllowed.code, said, NotAllowed.default_hint, str(state["request_id"]), challenge)

    def _limited(self, scope: Scope, headers: Headers, receive: Receive) -> Receive:
        form = headers.get("content-type", "").startswith("multipart/form-data")
        limit = self._max_upload + _FORM_OVERHEAD if form else _PLAIN_BYTES
        said = headers.get("content-length", "")
        if said.isdecimal() and int(said[:20]) > limit:
            raise TooLarge(f"the body has {said[:20]} bytes; at most {limit} are taken here")
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > limit:
                raise TooLarge(f"the body has more than {limit} bytes")
            return message

        return counted

    def _note(self, scope: Scope, status: int, seconds: float, request_id: str) -> None:
        route, method = _route(scope), scope["method"]
        self._metrics.requests.labels(method_label(method), route, str(status)).observe(seconds)
        level = log.debug if route.startswith(("/healthz", "/readyz", "/metrics")) else log.info
        level(
            "http.request", method=method, route=route, status=status, ms=round(seconds * 1e3, 1), request_id=request_id
        )


def _route(scope: Scope) -> str:
    """The path as the router knows it: bounded in number, and without the secret that a hook's path may carry."""
    return str(getattr(scope.get("route"), "path", None) or "unknown")
