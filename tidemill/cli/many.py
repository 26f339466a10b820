"""Many calls in one command, eight at a time, and what is known of each when they end early.

A call whose answer has not come may have been carried out or not: a command that is interrupted has to say so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

from tidemill.client import Client
from tidemill.client.wire import Call, Together
from tidemill.errors import TidemillError

T = TypeVar("T")

AT_ONCE = 8


class Many(Generic[T]):
    """Runs calls. `answers` has by place the value of each or its error, as soon as it has come, also after Ctrl-C."""

    def __init__(self, client: Client, calls: Sequence[Call[T]]) -> None:
        self.answers: dict[int, T | TidemillError | OSError] = {}
        self._client = client
        self._calls = calls
        self._asked = 0

    def run(self, what: str, fatal: type[Exception]) -> None:
        """Run them all; after an error of the kind `fatal` those that were begun end, and no more begin."""
        with progress(len(self._calls), what) as advance:
            while self._asked < len(self._calls):
                first, self._asked = self._asked, min(self._asked + AT_ONCE, len(self._calls))
                places = range(first, self._asked)
                self._client._run(_together([self._kept(place, advance) for place in places]))
                if any(isinstance(self.answers[place], fatal) for place in places):
                    return

    @property
    def values(self) -> dict[int, T]:
        """By place what went well."""
        return {place: x for place, x in sorted(self.answers.items()) if not isinstance(x, TidemillError | OSError)}

    @property
    def errors(self) -> dict[int, TidemillError | OSError]:
        """By place what went wrong."""
        return {place: x for place, x in sorted(self.answers.items()) if isinstance(x, TidemillError | OSError)}

    @property
    def unanswered(self) -> list[int]:
        """The places that were begun and of which nothing is known."""
        return [place for place in range(self._asked) if place not in self.answers]

    @property
    def left(self) -> int:
        """How many were not begun."""
        return len(self._calls) - self._asked

    def _kept(self, place: int, advance: Callable[[int], None]) -> Call[None]:
        try:
            self.answers[place] = yield from self._calls[place]
        except (TidemillError, OSError) as error:
            self.answers[place] = error
        advance(1)


def _together(calls: Sequence[Call[None]]) -> Call[None]:
    yield Together(tuple(calls))


@contextmanager
def progress(total: int, what: str) -> Iterator[Callable[[int], None]]:
    """Give a function that counts; a bar on a terminal when there is more than one thing to wait for."""
    if total < 2 or not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)
