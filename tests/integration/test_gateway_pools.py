"""The HTTP API about pools, agents and damaged records."""

import pytest
import redis

from tests.support.gateway import ECHO, Lab, submit
from tidemill.errors import StoreUnavailable
from tidemill.ledger.api import AgentReport


def test_pools_are_kept_drained_and_removed(lab: Lab) -> None:
    spec = {"name": "cpu", "slots": 2, "price": {"usd_per_hour": 0.1}, "agents": {"max": 3}}
    assert lab.http.put("/api/v1/pools/cpu", json=spec).json()["slots"] == 2
    assert lab.http.post("/api/v1/pools/cpu/drain").json()["draining"] is True
    assert lab.http.post("/api/v1/pools/cpu/resume").json()["draining"] is False
    assert [pool["name"] for pool in lab.http.get("/api/v1/pools").json()["pools"]] == ["cpu"]
    lab.ledger.set_scaling({"cpu": 2, "cpu/echo": 3})
    assert lab.http.get("/api/v1/scaling/cpu").json()["value"] == 2
    assert lab.http.get("/api/v1/scaling/cpu/echo").json()["value"] == 3
    assert lab.http.put("/api/v1/pools/cpu", json=spec | {"slotz": 1}).status_code == 422
    assert lab.http.delete("/api/v1/pools/cpu").status_code == 204
    assert lab.http.get("/api/v1/pools").json()["pools"] == []
    assert lab.services.record.pools() == []


def test_damaged_records_are_named_and_a_deploy_or_apply_mends_them(lab: Lab) -> None:
    assert lab.http.get("/api/v1/damaged").json() == {"damaged": []}
    lab.http.put("/api/v1/pools/cpu", json={"slots": 2}).raise_for_status()
    platform = lab.services.record.bucket
    request = f"requests/echo/{submit(lab).json()['id']}.1.json"
    keys = ["functions/echo/current.json", "pools/cpu.json", request]
    for key in keys:
        lab.store.put(platform, key, b"{")
    lab.ledger.note_ignored(platform, request, "damaged")  # as a rebuild does that met it
    found = lab.http.get("/api/v1/damaged").json()["damaged"]
    assert [entry["key"] for entry in found] == keys
    assert all("is damaged" in entry["reason"] for entry in found)
    before = lab.ledger.function("echo")
    assert lab.deploy(ECHO).status_code == 200
    assert lab.services.record.get_function("echo") == before == lab.ledger.function("echo")
    lab.http.put("/api/v1/pools/cpu", json={"slots": 2}).raise_for_status()
    lab.store.delete(platform, request)
    assert lab.http.get("/api/v1/damaged").json() == {"damaged": []}


def test_a_drained_pool_is_drained_in_the_bucket_before_the_ledger_hears_of_it(lab: Lab, redis_url: str) -> None:
    lab.http.put("/api/v1/pools/cpu", json={"slots": 2}).raise_for_status()
    assert lab.http.post("/api/v1/pools/cpu/drain").json()["draining"] is True
    redis.Redis.from_url(redis_url).flushdb()
    lab.ledger.begin_epoch(2, 1)
    [kept] = lab.services.record.pools()
    assert kept.draining
    assert lab.http.put("/api/v1/pools/cpu", json={"slots": 3}).json()["draining"] is True
    redis.Redis.from_url(redis_url).flushdb()
    lab.ledger.begin_epoch(3, 1)
    assert lab.http.post("/api/v1/pools/cpu/resume").json()["draining"] is False
    assert lab.http.post("/api/v1/pools/none/drain").status_code == 404


def test_a_drain_that_the_bucket_does_not_take_is_no_drain(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise StoreUnavailable("the store is away")

    lab.http.put("/api/v1/pools/cpu", json={"slots": 2}).raise_for_status()
    with monkeypatch.context() as patch:
        patch.setattr(lab.services.record, "drain_pool", away)
        assert lab.http.post("/api/v1/pools/cpu/drain").status_code == 503
    assert lab.http.get("/api/v1/pools/cpu").json()["draining"] is False


def test_agents_are_listed(lab: Lab) -> None:
    lab.ledger.heartbeat(AgentReport("pool-000001", "pool", 4))

    [agent] = lab.http.get("/api/v1/agents").json()["agents"]
    assert (agent["name"], agent["pool"], agent["slots"]) == ("pool-000001", "pool", 4)
