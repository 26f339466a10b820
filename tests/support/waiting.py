"""Waiting for a condition instead of sleeping."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], deadline_s: float = 10.0, *, interval_s: float = 0.01) -> T:
    """Calls `condition` until its value is true and returns that value.

    At the deadline it fails with the last value, or with the last `AssertionError` that the condition raised, so a
    condition may also be a function full of asserts that returns True.
    """
    give_up = time.monotonic() + deadline_s
    while True:
        last: object
        try:
            value = condition()
        except AssertionError as error:
            last, failure = str(error), error
        else:
            if value:
                return value
            last, failure = value, None
        if time.monotonic() >= give_up:
            name = getattr(condition, "__qualname__", condition)
            raise AssertionError(f"{name} did not hold within {deadline_s:g} s; last: {last!r}") from failure
        time.sleep(interval_s)
