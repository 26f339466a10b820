"""The end of a task gives the worker's event loop a turn: there it sees that it may ask for the next doorbell."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from kombu.asynchronous import get_event_loop, set_event_loop

from tests.support import wait_until
from tidemill_workers.agent.pool import WakingPool


class Loop:
    """Stands for the worker's hub; it remembers who woke it."""

    def __init__(self) -> None:
        self.turns: list[str] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        callback()
        self.turns.append(threading.current_thread().name)


@pytest.fixture
def loop() -> Iterator[Loop]:
    before = get_event_loop()
    found = Loop()
    set_event_loop(found)
    yield found
    set_event_loop(before)


def test_the_loop_is_woken_when_the_task_has_ended_and_not_before(loop: Loop) -> None:
    pool = WakingPool(1)
    go = threading.Event()
    try:
        pool.on_apply(lambda: go.wait(10), (), {}, callback=lambda *_: None)
        assert loop.turns == []
        go.set()
        wait_until(lambda: loop.turns, 5)
    finally:
        pool.on_stop()
    assert len(loop.turns) == 1


def test_the_loop_is_left_alone_while_a_thread_is_free(loop: Loop) -> None:
    pool = WakingPool(2)
    gates = [threading.Event() for _ in range(3)]
    done: list[int] = []
    try:

        def run(number: int) -> None:
            pool.on_apply(lambda: gates[number].wait(10), (), {}, callback=lambda *_: done.append(number))

        run(0)
        gates[0].set()
        wait_until(lambda: pool._running == 0, 5)
        assert loop.turns == [], "it asks for doorbells all the time"
        run(1)
        run(2)
        gates[1].set()
        wait_until(lambda: pool._running == 1, 5)
        wait_until(lambda: len(loop.turns) == 1, 5)  # it had stopped to ask
        gates[2].set()
        wait_until(lambda: pool._running == 0, 5)
    finally:
        pool.on_stop()
    assert done == [0, 1, 2]
    assert len(loop.turns) == 1
