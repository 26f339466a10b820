"""What only the ledger on a server has to stand: lost replies, lost scripts, full memory, no server at all."""

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from tests.contract.ledger.world import World
from tests.support import wait_until
from tidemill.doorbell import queue_name
from tidemill.errors import LedgerUnavailable
from tidemill.ledger import connect, connection
from tidemill.ledger.api import AgentReport, Ended
from tidemill.ledger.redis_ledger import RedisLedger
from tidemill.models import Placement, settled_place


@pytest.fixture
def ledger(redis_url: str) -> Iterator[RedisLedger]:
    opened = connect(redis_url, f"s{secrets.token_hex(4)}:")
    opened.begin_epoch(1, 1)
    opened.heartbeat(AgentReport("gpu-000001", "gpu", 4))
    yield opened
    opened.close()


@pytest.fixture
def world(ledger: RedisLedger) -> World:
    return World(ledger, lambda _: None, "valkey", lambda: ledger)


@pytest.fixture
def lose(ledger: RedisLedger, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let the reply of the next script be lost, after the server has run it."""
    real, losses = ledger._connection.calls.evalsha, [0]

    def evalsha(*args: Any) -> Any:
        reply = real(*args)
        if losses[0]:
            losses[0] -= 1
            raise redis.ConnectionError("lost on the way back")
        return reply

    monkeypatch.setattr(ledger._connection.calls, "evalsha", evalsha)

    def arm() -> None:
        # So that the first try finds its script.
        losses[0] = 1

    return arm


def test_a_claim_whose_reply_was_lost_gives_the_same_jobs_again(
    world: World, ledger: RedisLedger, lose: Callable[[], None]
) -> None:
    ledger.claim("gpu-000001", 1, 60.0)
    ids = [world.submit() for _ in range(3)]
    for job_id in ids:
        ledger.release(job_id, "gpu-000001", Placement())
    lose()
    claims = ledger.claim("gpu-000001", 2, 60.0)
    assert sorted(claim.job.id for claim in claims) == sorted(ids[:2])
    assert [claim.token.attempt for claim in claims] == [1, 1]
    assert not any(claim.look_first for claim in claims)
    assert all(renewal.held for renewal in ledger.renew([claim.token for claim in claims], 60.0))
    assert world.state(ids[2]) == "released"


@pytest.mark.parametrize("released", [False, True])
def test_a_seizure_whose_reply_was_lost_gives_the_same_job_again(
    world: World, ledger: RedisLedger, lose: Callable[[], None], released: bool
) -> None:
    ledger.seize("f" * 32, "warm", 60.0)
    job_id = world.submit()
    if released:
        ledger.release(job_id, "gpu-000001", Placement())
    lose()
    claim = ledger.seize(job_id, "placement", 60.0)
    assert claim is not None and ledger.renew([claim.token], 60.0)[0].held


def test_a_cancel_whose_reply_was_lost_gives_the_same_job_again(
    world: World, ledger: RedisLedger, lose: Callable[[], None]
) -> None:
    ledger.cancel("f" * 32, "warm", 60.0)
    job_id = world.submit()
    lose()
    before, claim = ledger.cancel(job_id, "anna", 60.0)
    assert before == "queued"
    assert claim is not None and claim.cancel and ledger.renew([claim.token], 60.0)[0].held


def test_calls_whose_replies_were_lost_are_done_once(
    world: World, ledger: RedisLedger, lose: Callable[[], None]
) -> None:
    world.finish(world.claimed().token)
    job_id = world.submit()
    lose()
    assert ledger.release(job_id, "gpu-000001", Placement())
    (claim,) = ledger.claim("gpu-000001", 1, 60.0)
    lose()
    assert ledger.give_back(claim.token)
    claim = world.claim(job_id)
    assert claim.token.attempt == 2
    lose()
    assert ledger.commit(claim.token, Ended("succeeded"), 60.0)
    lose()
    assert ledger.published(claim.token, Ended("succeeded"))
    assert len([line for line in ledger.transitions("0") if line.job_id == job_id and line.state.terminal]) == 1


def test_a_log_line_is_never_doubled_by_a_repetition(
    world: World, ledger: RedisLedger, lose: Callable[[], None]
) -> None:
    claim = world.claimed()
    ledger.append_log(claim.token, [("stdout", "one")])
    lose()
    with pytest.raises(LedgerUnavailable) as caught:
        ledger.append_log(claim.token, [("stdout", "two")])
    assert isinstance(caught.value.__cause__, redis.ConnectionError)
    assert [line.text for line in ledger.log(claim.job.id)] == ["one", "two"]


def test_scripts_that_the_server_forgot_are_sent_again(world: World, ledger: RedisLedger) -> None:
    world.submit()
    ledger._connection.calls.script_flush()
    world.finish(world.claimed().token)


def test_a_server_that_does_not_answer_is_an_error_of_ours_with_the_drivers_as_cause() -> None:
    away = connect("redis://127.0.0.1:1/0")
    for call in (away.counts, away.epoch, away.ping, lambda: away.transitions("$", 0.1)):
        with pytest.raises(LedgerUnavailable) as caught:
            call()
        assert isinstance(caught.value.__cause__, redis.RedisError)
        assert caught.value.error_code == "ledger_unavailable"
    away.close()


def test_connections_that_the_server_closed_are_opened_again(world: World, ledger: RedisLedger) -> None:
    job_id = world.submit()
    ledger._connection.command("CLIENT", "KILL", "TYPE", "normal", repeat=False)
    assert world.state(job_id) == "queued"


def test_a_block_may_last_longer_than_the_time_allowed_for_an_answer(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "ANSWER_S", 0.2)
    monkeypatch.setattr(connection, "BLOCK_S", 0.3)
    ledger = connect(redis_url, "block:")
    assert ledger.transitions("$", 0.8) == []
    assert ledger.log("f" * 32, block_s=0.4) == []
    ledger.close()


def test_above_the_memory_limit_new_jobs_are_refused_and_running_ones_report(world: World, ledger: RedisLedger) -> None:
    waiting = world.submit()
    claim = world.claimed()
    calls = ledger._connection.calls
    limit = str(calls.config_get("maxmemory")["maxmemory"])
    calls.config_set("maxmemory", 1)
    try:
        with pytest.raises(LedgerUnavailable) as caught:
            ledger.submit(world.new())
        assert caught.value.error_code == "ledger_full"
        assert ledger.memory().full
        assert ledger.renew([claim.token], 60.0)[0].held
        world.finish(claim.token)
        world.finish(world.claim(waiting).token)
        assert ledger.sweep("placement", 60.0, 60.0).requeued == ()
    finally:
        calls.config_set("maxmemory", limit)


def test_the_settled_set_stays_in_integer_sets_beyond_the_servers_default(ledger: RedisLedger) -> None:
    ids = [f"{number:032x}" for number in range(2000)]
    assert len({settled_place(job_id)[0] for job_id in ids}) == 1
    ledger.settle(ids)
    key = ledger._connection.keys.of("settled", settled_place(ids[0])[0])
    assert ledger._connection.command("OBJECT", "ENCODING", key) in ("intset", b"intset")
    assert ledger._connection.command("MEMORY", "USAGE", key) < 9 * 2000


def test_a_server_that_forbids_configuration_is_used_all_the_same(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as admin:
        admin.execute_command("ACL", "SETUSER", "plain", "on", ">pw", "~*", "&*", "+@all", "-config")
    address = redis_url.split("@", 1)[1]
    ledger = connect(f"redis://plain:pw@{address}", "acl:")
    assert ledger.begin_epoch(1, 0)
    assert ledger.advance(1, 1)
    ledger.close()
    with redis.Redis.from_url(redis_url) as admin:
        admin.execute_command("ACL", "DELUSER", "plain")


def test_two_installations_share_a_server_without_seeing_each_other(redis_url: str) -> None:
    one, two = connect(redis_url, "one:"), connect(redis_url, "two:")
    one.begin_epoch(1, 0)
    assert two.epoch() is None
    World(one, lambda _: None, "valkey", lambda: one).submit()
    two.begin_epoch(1, 0)
    assert two.counts() == {} and two.transitions("0") == []
    one.close()
    two.close()


def test_the_backlog_reads_no_more_jobs_than_it_gives(world: World, ledger: RedisLedger, redis_url: str) -> None:
    later = [world.submit() for _ in range(50)]
    ledger.backlog()
    with redis.Redis.from_url(redis_url) as server:
        place = ledger._connection.keys.of("queue", "ocr")
        server.zadd(place, dict.fromkeys(later, 4e15))  # in 2096
        ready = world.submit(params={"n": 1})

        def read(limit: int) -> tuple[list[str], int]:
            before = server.info("commandstats")["cmdstat_hmget"]["calls"]
            ((function, jobs),) = [(found.function, found.jobs) for found in ledger.backlog(limit)]
            assert function == "ocr"
            return [job.id for job in jobs], server.info("commandstats")["cmdstat_hmget"]["calls"] - before

        assert read(10) == ([ready], 1)
        assert read(0) == ([], 0)
        server.zadd(place, {ready: 4e15})
        assert read(10) == ([], 0)
    (found,) = ledger.backlog()
    assert (found.ready, found.delayed, found.jobs, found.next_delayed_at) == (0, 51, (), 4e9)


def test_a_log_lives_an_hour_after_its_job(world: World, ledger: RedisLedger) -> None:
    claim = world.claimed()
    ledger.append_log(claim.token, [("stdout", "one")])
    key = ledger._connection.keys.of("log", claim.job.id)
    assert ledger._connection.calls.ttl(key) == -1
    world.finish(claim.token)
    assert 3500 < int(ledger._connection.calls.ttl(key)) <= 3600


def test_the_stream_is_cut_to_about_twenty_thousand_lines(world: World, ledger: RedisLedger) -> None:
    keys, calls = ledger._connection.keys, ledger._connection.calls
    with calls.pipeline(transaction=False) as many:
        for _ in range(25_000):
            many.xadd(keys.one("transitions"), {"job": "x"})
        many.execute()
    world.submit()
    wait_until(lambda: 20_000 <= int(calls.xlen(keys.one("transitions"))) < 20_300)


def test_a_finished_job_leaves_only_its_hash_its_place_in_listings_and_its_identity(
    world: World, ledger: RedisLedger
) -> None:
    claim = world.claimed()
    keys, calls = ledger._connection.keys, ledger._connection.calls
    world.finish(claim.token)
    shapes = {str(key).removeprefix(keys.prefix).split(":")[0] for key in calls.scan_iter(f"{keys.prefix}*")}
    assert shapes == {"epoch", "job", "jobs", "finished", "counts", "settled", "transitions", "agents", "agent"}
    assert ledger.expire(9e9) == 1
    shapes = {str(key).removeprefix(keys.prefix).split(":")[0] for key in calls.scan_iter(f"{keys.prefix}*")}
    assert shapes == {"epoch", "settled", "transitions", "agents", "agent"}


@pytest.mark.parametrize(
    ("pool", "agent"), [("gpu", "gpu-1"), ("a-b.c", "a-b.c-1"), ("gpu", "gpu-ab-cd"), ("gpu", "x")]
)
def test_a_grant_rings_at_the_list_that_the_agents_worker_reads(redis_url: str, pool: str, agent: str) -> None:
    ledger = connect(redis_url)
    ledger.begin_epoch(1, 0)
    world = World(ledger, lambda _: None, "valkey", lambda: ledger)
    world.agent(agent, pool)
    ledger.set_grants("ocr", {agent: 1})
    assert ledger.submit(world.new(), bell="ding").agent == agent
    assert ledger.submit(world.new(), bell="ding").agent is None
    with redis.Redis.from_url(redis_url) as server:
        assert server.lrange(queue_name(pool, agent), 0, -1) == [b"ding"]
