"""The app: routes, the edge around them, and what belongs to its event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio.to_thread
from fastapi import FastAPI

from tidemill import __version__
from tidemill_gateway.api import functions, health, hooks, jobs, pools, problems, streams, submissions
from tidemill_gateway.api.description import Described
from tidemill_gateway.api.edge import Edge
from tidemill_gateway.services import Services

_THREADS = 64  # for handlers that block on store and ledger


def create_app(services: Services) -> FastAPI:
    """Give the HTTP API over these services. Their threads (`Services.start`) are the caller's."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = _THREADS
        yield
        await services.feed.stop()

    # Its own pages would load scripts from elsewhere.
    app = Described(title="Tidemill", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    for room in (hooks, submissions, jobs, streams, functions, pools, health):
        app.include_router(room.routes(services))
    problems.install(app)
    app.add_middleware(
        Edge,
        owners=services.owners,
        metrics=services.metrics,
        hooks=hooks.Hooks(services),
        max_upload=services.gateway.max_upload,
        landing=health.LANDING,
    )
    return app
