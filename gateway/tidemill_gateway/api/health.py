"""`/healthz` (the process lives), `/readyz` (it can do its work), `/metrics`, and a first page."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter
from starlette.responses import HTMLResponse, Response

from tidemill.errors import TidemillError
from tidemill_gateway.api import answers, wire
from tidemill_gateway.api.description import OPEN
from tidemill_gateway.api.problems import COMMON, refusals
from tidemill_gateway.services import Services

LANDING = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Tidemill</title></head>
<body><main><h1>Tidemill</h1>
<p>This is the HTTP API of a Tidemill gateway. Its calls need the bearer token
that <code>tidemill env</code> prints.</p>
<ul><li><code>/openapi.json</code>: every call</li><li><code>/healthz</code>, <code>/readyz</code>,
<code>/metrics</code>: how it is</li></ul></main></body></html>
"""


def routes(services: Services) -> APIRouter:
    router = APIRouter(tags=["service"])

    @router.get("/", include_in_schema=False)
    async def landing() -> Response:
        return HTMLResponse(LANDING)

    @router.get(
        "/healthz",
        summary="The process lives (no token needed)",
        responses={200: {"model": answers.Alive}, **refusals(413)},
        openapi_extra=OPEN,
    )
    async def healthz() -> Response:
        return wire.of_value({"status": "ok"})

    @router.get(
        "/readyz",
        summary="Ledger and store answer, and there is an epoch",
        responses={
            200: {"model": answers.Readiness},
            503: {"model": answers.Readiness, "description": "Not ready: `checks` says why"},
            **refusals(401, 413, 500),
        },
    )
    def readyz() -> Response:
        intake = "ok" if services.started else "starting"
        checks = {"ledger": _ledger(services), "store": _store(services), "intake": intake}
        ready = all(found == "ok" for found in checks.values())
        # Events are hints: without them it is ready, and slower.
        events = asdict(services.events.health)
        return wire.of_value({"ready": ready, "checks": checks, "events": events}, 200 if ready else 503)

    @router.get(
        "/metrics",
        summary="Numbers for Prometheus",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **COMMON},
    )
    def metrics() -> Response:
        _measure(services)
        return Response(services.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return router


def _ledger(services: Services) -> str:
    try:
        services.ledger.ping()
        return "ok" if services.ledger.epoch() is not None else "no epoch: no placement service leads yet"
    except TidemillError as error:
        return error.message


def _store(services: Services) -> str:
    try:
        services.store.ping()
    except TidemillError as error:
        return error.message
    return "ok"


def _measure(services: Services) -> None:
    """Read what only the ledger knows. Raises `LedgerUnavailable`: then there is nothing true to show."""
    metrics = services.metrics
    metrics.jobs.clear()
    for function, states in services.ledger.counts().items():
        for state, count in states.items():
            metrics.jobs.labels(function, state.value).set(count)
    metrics.agents.clear()
    for agent in services.ledger.agents():
        metrics.agents.labels(agent.pool, agent.state).inc()
    memory = services.ledger.memory()
    metrics.ledger_memory.labels("used").set(memory.used)
    metrics.ledger_memory.labels("limit").set(memory.limit)
    metrics.backlog.set(services.receiver.backlog)
    health = services.events.health
    metrics.events_ok.set(-1 if health.ok is None else int(health.ok))
    metrics.canary_seconds.set(health.last_s if health.last_s is not None else float("nan"))
