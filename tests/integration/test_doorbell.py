"""Doorbells and Flower's events over a real broker, read by Celery's own consumers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import redis

from tests.support import wait_until
from tidemill.doorbell import LISTENER, TASK, Doorbell, FlowerEvents, describe, make_app, queue_name
from tidemill.ledger.api import Transition
from tidemill.models import JobState


def line(state: JobState, **more: Any) -> Transition:
    return Transition("1-1", "a" * 32, "ocr", state, time.time(), **more)


@contextmanager
def listening(redis_url: str) -> Iterator[list[dict[str, Any]]]:
    """What Flower would receive."""
    app = make_app(redis_url, LISTENER)
    got: list[dict[str, Any]] = []
    ready, stop = threading.Event(), threading.Event()

    def listen() -> None:
        while not stop.is_set():  # it connects again when its connection broke, as Flower does
            with suppress(redis.ConnectionError, *app.connection().connection_errors), app.connection() as connection:
                receiver = app.events.Receiver(connection, handlers={"*": got.append}, app=app)
                receiver.on_consume_ready = lambda *args, **more: ready.set()
                for _ in receiver.consume(limit=None, timeout=None, safety_interval=0.1):
                    if stop.is_set():
                        return

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield got
    finally:
        stop.set()
        FlowerEvents(redis_url).send([line(JobState.failed)])  # one more event, after which it looks at the flag
        thread.join(10)


def test_flower_receives_a_group_of_events_in_order(redis_url: str) -> None:
    events = FlowerEvents(redis_url)
    assert events.listeners() == frozenset()
    with listening(redis_url) as got:
        # Its queue alone may be there before it is subscribed, and what is sent then is lost.
        wait_until(lambda: any(name.startswith("connection") for name in events.listeners()), 10)
        sent = events.send(
            [
                line(JobState.queued, created=True, summary="inbox/a.png"),
                line(JobState.released, agent="near-1"),
                line(JobState.running, agent="near-1", attempt=1),
                line(JobState.succeeded, agent="near-1", run_s=1.5),
            ]
        )
        assert sent == 4
        wait_until(lambda: [event["type"] for event in got][-1:] == ["task-succeeded"], 10)
    mine = [event for event in got if event["type"] != "task-failed"]
    # Received too: Flower sorts its rows by it, and counts by it what a worker has processed.
    assert [event["type"] for event in mine] == ["task-sent", "task-received", "task-started", "task-succeeded"]
    assert mine[0]["name"] == "ocr"
    assert mine[0]["args"] == "inbox/a.png"
    assert mine[1]["hostname"] == mine[3]["hostname"] == "near@near-1"
    assert mine[3]["runtime"] == pytest.approx(1.5)


def test_a_flower_whose_connection_broke_is_a_new_listener(redis_url: str) -> None:
    events = FlowerEvents(redis_url)
    with listening(redis_url), redis.Redis.from_url(redis_url) as server:
        wait_until(lambda: any(name.startswith("connection") for name in events.listeners()), 10)
        before = events.listeners()
        server.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        wait_until(lambda: bool({name for name in events.listeners() - before if name.startswith("connection")}), 10)


def test_an_agents_queue_gets_one_message_and_is_deleted_with_it(redis_url: str) -> None:
    bell = Doorbell(redis_url)
    assert bell.ring("near", "near-1", "a" * 32, "ocr")
    app = make_app(redis_url)
    with app.connection() as connection, connection.SimpleQueue(queue_name("near", "near-1")) as queue:
        message = queue.get(timeout=5)
        assert message.headers["task"] == TASK
        message.ack()
    bell.ring("near", "near-1")
    bell.forget("near", "near-1")
    with redis.Redis.from_url(redis_url) as server:
        assert [key for key in server.keys("*near.near-1*") if b"deadline" not in key] == []


def test_a_dead_broker_is_told_and_never_raised() -> None:
    assert Doorbell("redis://127.0.0.1:1/0").ring("near", "near-1") is False


def test_a_new_generation_is_sent_as_a_retry_so_that_flower_leaves_the_final_state() -> None:
    assert [kind for kind, _ in describe(line(JobState.queued, created=True, generation=2))] == ["task-retried"]
