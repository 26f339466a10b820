"""`pools`, `agents` and `scaling`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from tidemill.errors import Conflict, InvalidSpec, NotFound
from tidemill.ledger.api import AgentReport, PoolState
from tidemill.models import PoolSpec
from tidemill_gateway.api import answers, wire
from tidemill_gateway.api.problems import COMMON, refusals
from tidemill_gateway.services import Services

_POOL_BODY = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}},
}
_SHOWN = {"model": answers.PoolShown}


def routes(services: Services) -> APIRouter:
    router = APIRouter(prefix="/api/v1", tags=["pools"], responses=COMMON)

    @router.get("/pools", summary="All pools, with what runs in them", responses={200: {"model": answers.Pools}})
    def list_pools() -> Response:
        pools, agents = services.ledger.pools(), services.ledger.agents()
        return wire.of_value({"pools": [_shown(pools[name], agents) for name in sorted(pools)]})

    @router.get("/pools/{name}", summary="One pool", responses={200: _SHOWN, **refusals(404)})
    def show_pool(name: str) -> Response:
        return wire.of_value(_shown(_pool(name), services.ledger.agents()))

    @router.put(
        "/pools/{name}",
        summary="Put a pool in place",
        responses={200: _SHOWN, **refusals(422)},
        openapi_extra=_POOL_BODY,
    )
    async def put_pool(name: str, request: Request) -> Response:
        data = await wire.body_object(request)
        spec = _spec({"name": name, **data})
        if spec.name != name:
            raise InvalidSpec(f"the pool is {spec.name}, but the address says {name}", hint="Make both the same.")
        await run_in_threadpool(_put, spec)
        return wire.of_value(await run_in_threadpool(lambda: _shown(_pool(name), services.ledger.agents())))

    @router.delete(
        "/pools/{name}", summary="Remove a pool; drain it first", status_code=204, responses=refusals(404, 409)
    )
    def delete_pool(name: str) -> Response:
        _pool(name)
        busy = [agent for agent in services.ledger.agents() if agent.pool == name and agent.running]
        if busy:
            raise Conflict(
                f"{len(busy)} agents of the pool {name} run jobs",
                hint=f"Run `tidemill pool drain {name}`, and delete it when its agents are gone.",
            )
        services.record.delete_pool(name)
        services.ledger.remove_pool(name)
        return Response(status_code=204)

    @router.post("/pools/{name}/drain", summary="Give a pool no more jobs", responses={200: _SHOWN, **refusals(404)})
    def drain(name: str) -> Response:
        return _drained(name, True)

    @router.post(
        "/pools/{name}/resume", summary="Give a drained pool jobs again", responses={200: _SHOWN, **refusals(404)}
    )
    def resume(name: str) -> Response:
        return _drained(name, False)

    @router.get("/agents", summary="Agents that report", responses={200: {"model": answers.AgentList}})
    def agents() -> Response:
        return wire.of_value({"agents": [asdict(agent) for agent in services.ledger.agents()]})

    @router.get(
        "/scaling/{pool}",
        summary="How many agents a pool should have, for outside scalers",
        responses={200: {"model": answers.ScalingValue}, **refusals(404)},
    )
    def scaling(pool: str) -> Response:
        _pool(pool)
        return wire.of_value({"pool": pool, "value": services.ledger.scaling().get(pool, 0)})

    @router.get(
        "/scaling/{pool}/{function}",
        summary="How many slots of a function a pool should have",
        responses={200: {"model": answers.ScalingValue}, **refusals(404)},
    )
    def scaling_function(pool: str, function: str) -> Response:
        _pool(pool)
        services.calls.function(function)
        value = services.ledger.scaling().get(f"{pool}/{function}", 0)
        return wire.of_value({"pool": pool, "function": function, "value": value})

    def _pool(name: str) -> PoolState:
        found = services.ledger.pools().get(name)
        if found is None:
            raise _unknown(name)
        return found

    def _put(spec: PoolSpec) -> None:
        kept = services.record.put_pool(spec)
        services.ledger.put_pool(spec, draining=kept.draining)

    def _drained(name: str, draining: bool) -> Response:
        kept = services.record.drain_pool(name, draining)
        if kept is None:
            raise _unknown(name)
        if not services.ledger.drain_pool(name, draining):  # a ledger that is being restored does not know it yet
            services.ledger.put_pool(kept.spec, draining=draining)
        return wire.of_value(_shown(_pool(name), services.ledger.agents()))

    return router


def _unknown(name: str) -> NotFound:
    return NotFound(f"there is no pool {name}", hint="`tidemill pool list` shows what there is.")


def _shown(pool: PoolState, agents: list[AgentReport]) -> dict[str, Any]:
    mine = [agent for agent in agents if agent.pool == pool.spec.name]
    live = {
        "agents": len(mine),
        "slots": sum(agent.slots for agent in mine),
        "released": sum(agent.released for agent in mine),
        "running": sum(agent.running for agent in mine),
    }
    return {**wire.dump(pool.spec), "draining": pool.draining, "live": live}


def _spec(data: dict[str, Any]) -> PoolSpec:
    try:
        return PoolSpec.model_validate(data)
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()[:5]]
        raise InvalidSpec("; ".join(faults)) from error
