"""Stale tokens change nothing, whatever made them stale and whichever call carries them."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.contract.ledger.world import World
from tidemill.errors import LedgerUnavailable
from tidemill.ledger.api import Ended, Ledger, Token
from tidemill.models import Placement

CALLS: dict[str, Callable[[Ledger, Token], bool]] = {
    "renew": lambda ledger, token: ledger.renew([token], 999.0)[0].held,
    "progress": lambda ledger, token: ledger.progress(token, 1, 2, "x"),
    "commit": lambda ledger, token: ledger.commit(token, Ended("failed"), 60.0),
    "published": lambda ledger, token: ledger.published(token, Ended("failed")),
    "give_back": lambda ledger, token: ledger.give_back(token, why="stale"),
    "append_log": lambda ledger, token: ledger.append_log(token, [("stdout", "stale")]),
}
FORGERIES: dict[str, Callable[[Token], Token]] = {
    "nonce": lambda token: replace(token, nonce="0" * 16),
    "attempt": lambda token: replace(token, attempt=token.attempt + 1),
    "epoch": lambda token: replace(token, epoch=token.epoch + 1),
    "generation": lambda token: replace(token, generation=token.generation + 1),
    "job": lambda token: replace(token, job_id="f" * 32),
}


def snapshot(world: World, job_id: str) -> object:
    ledger = world.ledger
    return ledger.job(job_id), ledger.counts(), ledger.log(job_id), len(ledger.transitions("0"))


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_token_that_differs_in_one_part_changes_nothing(world: World, call: str, forgery: str) -> None:
    token = world.claimed().token
    before = snapshot(world, token.job_id)
    assert CALLS[call](world.ledger, FORGERIES[forgery](token)) is False
    assert snapshot(world, token.job_id) == before
    assert world.ledger.renew([token], 60.0)[0].held


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("state", ["queued", "released", "running", "committed", "succeeded"])
def test_the_token_of_an_attempt_that_was_swept_changes_nothing(world: World, call: str, state: str) -> None:
    token = world.claimed(lease_s=0.0).token
    assert world.ledger.sweep("placement", 60.0, 60.0).requeued == (token.job_id,)
    if state != "queued":
        assert world.ledger.release(token.job_id, world.agent(), Placement())
    if state not in ("queued", "released"):
        (claim,) = world.ledger.claim("gpu-000001", 1, 60.0)
        if state != "running":
            assert world.ledger.commit(claim.token, Ended("succeeded"), 60.0)
        if state == "succeeded":
            assert world.ledger.published(claim.token, Ended("succeeded"))
    assert world.state(token.job_id) == state
    before = snapshot(world, token.job_id)
    assert CALLS[call](world.ledger, token) is False
    assert snapshot(world, token.job_id) == before


@pytest.mark.parametrize("call", CALLS)
def test_the_token_of_an_older_epoch_changes_nothing(world: World, call: str) -> None:
    token = world.claimed().token
    assert world.ledger.begin_epoch(2, 0)
    before = snapshot(world, token.job_id)
    assert CALLS[call](world.ledger, token) is False
    assert snapshot(world, token.job_id) == before


@pytest.mark.parametrize("call", ["progress", "give_back"])
def test_a_committed_job_neither_moves_nor_comes_back(world: World, call: str) -> None:
    token = world.claimed().token
    assert world.ledger.commit(token, Ended("succeeded"), 60.0)
    before = snapshot(world, token.job_id)
    assert CALLS[call](world.ledger, token) is False
    assert snapshot(world, token.job_id) == before


def test_an_ended_job_never_changes_again(world: World) -> None:
    token = world.claimed().token
    world.finish(token)
    before = snapshot(world, token.job_id)
    for call in CALLS.values():
        assert call(world.ledger, token) is False
    world.ledger.sweep("placement", 60.0, 0.0)
    world.ledger.agent_gone("gpu-000001")
    assert world.ledger.seize(token.job_id, "placement", 60.0) is None
    assert snapshot(world, token.job_id) == before


JOB_CALLS: dict[str, Callable[[World], object]] = {
    "submit": lambda world: world.ledger.submit(world.new()),
    "release": lambda world: world.ledger.release("a" * 32, "gpu-000001", Placement()),
    "note_placement": lambda world: world.ledger.note_placement("a" * 32, Placement()),
    "claim": lambda world: world.ledger.claim("gpu-000001", 1, 60.0),
    "seize": lambda world: world.ledger.seize("a" * 32, "x", 60.0),
    "cancel": lambda world: world.ledger.cancel("a" * 32, "x", 60.0),
    "sweep": lambda world: world.ledger.sweep("x", 60.0, 60.0),
    "agent_gone": lambda world: world.ledger.agent_gone("gpu-000001"),
    "drain_agent": lambda world: world.ledger.drain_agent("gpu-000001"),
    "heartbeat": lambda world: world.agent(),
    "agents": lambda world: world.ledger.agents(),
    "set_wanted": lambda world: world.ledger.set_wanted("gpu-000001", {}),
    "set_grants": lambda world: world.ledger.set_grants("ocr", {}),
    "set_scaling": lambda world: world.ledger.set_scaling({}),
    "job": lambda world: world.ledger.job("a" * 32),
    "jobs": lambda world: world.ledger.jobs(),
    "iter_open": lambda world: list(world.ledger.iter_open()),
    "counts": lambda world: world.ledger.counts(),
    "backlog": lambda world: world.ledger.backlog(),
    "wait": lambda world: world.ledger.wait("a" * 32, 0.0),
    "known": lambda world: world.ledger.known(["a" * 32]),
    "settle": lambda world: world.ledger.settle(["a" * 32]),
    "unsettle": lambda world: world.ledger.unsettle(["a" * 32]),
    "expire": lambda world: world.ledger.expire(0.0),
    **{
        name: lambda world, call=call: call(world.ledger, Token("a" * 32, 1, 1, 1, "n"))  # type: ignore[misc]
        for name, call in CALLS.items()
    },
}


@pytest.mark.parametrize("call", JOB_CALLS)
def test_every_job_call_refuses_while_there_is_no_epoch(bare: World, call: str) -> None:
    with pytest.raises(LedgerUnavailable) as caught:
        JOB_CALLS[call](bare)
    assert caught.value.error_code == "no_epoch"
