"""`hooks/s3/{store}`: bucket events. The secret is a bearer token, or the last part of the path.

Whoever has the secret always hears 200: a store that hears an error tries the same body again, and some then hold back
everything behind it. Junk is kept for the operator; what is too large is cut off unread.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from tidemill.errors import NotAllowed, NotFound
from tidemill_gateway.auth import bearer
from tidemill_gateway.auth.owners import same_secret
from tidemill_gateway.intake.webhook import MAX_BODY_BYTES
from tidemill_gateway.services import Services


def routes(services: Services) -> APIRouter:
    router = APIRouter(prefix="/hooks/s3", tags=["events"])
    expected = services.gateway.hook_secret.get_secret_value()

    @router.api_route("/{store}", methods=["POST"], summary="Bucket events, with a bearer token")
    async def by_header(store: str, request: Request) -> Response:
        return await _take(store, request, bearer(request.headers.get("authorization")))

    @router.api_route("/{store}/{secret}", methods=["POST"], summary="Bucket events, with the secret in the path")
    async def by_path(store: str, secret: str, request: Request) -> Response:
        return await _take(store, request, secret)

    @router.api_route("/{store}", methods=["GET", "HEAD"], summary="A probe of the store", include_in_schema=False)
    async def probe(store: str, request: Request) -> Response:
        _check(store, bearer(request.headers.get("authorization")))
        return Response()

    @router.api_route("/{store}/{secret}", methods=["GET", "HEAD"], include_in_schema=False)
    async def probe_by_path(store: str, secret: str) -> Response:
        _check(store, secret)
        return Response()

    def _check(store: str, given: str | None) -> None:
        if not same_secret(given, expected):
            raise NotAllowed(
                "these bucket events carry a wrong secret, or none",
                hint="Give the store the value of TIDEMILL_GATEWAY__HOOK_SECRET as its token.",
            )
        if store != services.store.name:
            raise NotFound(
                f"there is no store {store}", hint=f"This gateway takes events at /hooks/s3/{services.store.name}."
            )

    async def _take(store: str, request: Request, given: str | None) -> Response:
        _check(store, given)
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                services.receiver.offer(store, bytes(body[:4096]), f"larger than {MAX_BODY_BYTES} bytes")
                return Response(headers={"Connection": "close"})
        services.receiver.offer(store, bytes(body))
        return Response()

    return router
