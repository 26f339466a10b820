"""One function over many inputs: a window of jobs under way, submitted ahead of their results.

At most `concurrency` jobs are submitted and not yet handed out, so an endless iterable works and a slow consumer holds
the sending back. In order, only the oldest job is waited for; in any order, all are looked at in rounds, and a round is
followed by a pause of four times its own length, so that looking never takes more than a fifth of the time. Leaving the
loop cancels nothing.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from tidemill.client.jobs import Finished, JobCalls
from tidemill.client.payloads import Payload
from tidemill.client.problems import job_error
from tidemill.client.values import Snapshot
from tidemill.client.wire import Call, Emit, Pause, Together
from tidemill.errors import InvalidSpec, TidemillError, WaitTimeout

_SHORTEST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one input: its job (None when it was refused), and its results or the error."""

    index: int
    job: Snapshot | None
    results: Mapping[str, Any] = field(default_factory=dict)
    error: Exception | None = None


@dataclass(frozen=True)
class MapCall:
    """The call behind `map`. It emits an `Outcome` for each input."""

    jobs: JobCalls
    function: str
    payloads: Iterable[Payload]
    params: Mapping[str, Any] | None = None
    in_order: bool = True
    concurrency: int = 64
    timeout: float | None = None

    def call(self) -> Call[None]:
        if self.concurrency < 1:
            raise InvalidSpec(f"concurrency={self.concurrency} runs nothing.", hint="Give 1 or more.")
        clock = self.jobs.asker.clock
        give_up = None if self.timeout is None else clock() + self.timeout
        source = iter(self.payloads)
        under_way: deque[Outcome] = deque()
        sent, more, pause_s = 0, True, _SHORTEST_PAUSE_S
        while True:
            while more and len(under_way) <= max(0, self.concurrency - _AT_ONCE):
                batch = _take(source, min(_AT_ONCE, self.concurrency - len(under_way)))
                more = bool(batch)
                if batch:
                    under_way.extend((yield from self._send(batch, sent)))
                    sent += len(batch)
            if not under_way:
                return
            began = clock()
            ready = yield from self._ready(under_way, give_up)
            for outcome in ready:
                yield Emit(outcome)
            if ready:
                pause_s = _SHORTEST_PAUSE_S
            elif give_up is not None and clock() >= give_up:
                raise WaitTimeout(f"{len(under_way)} jobs are not over after {self.timeout:g} s.")
            elif not self.in_order:
                yield Pause(max(pause_s, min(4 * (clock() - began), _LONGEST_PAUSE_S)))
                pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)

    def _send(self, batch: list[Payload], first: int) -> Call[list[Outcome]]:
        # The keys are made here, outside the calls, so that a submit keeps its own through all its tries.
        calls = tuple(self.jobs.submit(self.function, p, self.params, secrets.token_hex(16)) for p in batch)
        answers = yield Together(calls)
        return [
            Outcome(first + i, None, error=a) if isinstance(a, Exception) else Outcome(first + i, a)
            for i, a in enumerate(answers)
        ]

    def _ready(self, under_way: deque[Outcome], give_up: float | None) -> Call[list[Outcome]]:
        """Take those that are over out of `under_way`, with their results."""
        seen = list(under_way)
        if self.in_order:
            try:
                seen[0] = yield from self._oldest(seen[0], give_up)
            except WaitTimeout:
                return []
            seen = [seen[0], *(yield from self._look(seen[1:_AT_ONCE]))]
            over = list(takewhile(_is_over, seen))
        else:
            over = [outcome for outcome in (yield from self._look(seen)) if _is_over(outcome)]
        gone = {outcome.index for outcome in over}
        left = [outcome for outcome in under_way if outcome.index not in gone]
        under_way.clear()
        under_way.extend(left)
        return list((yield Together(tuple(self._end(outcome) for outcome in over))))

    def _look(self, outcomes: list[Outcome]) -> Call[list[Outcome]]:
        open_ones = {o.index: o.job for o in outcomes if o.job is not None and not _is_over(o)}
        answers = yield Together(tuple(self.jobs.look(job.id) for job in open_ones.values()))
        news = dict(zip(open_ones, answers, strict=True))
        return [_with(o, news[o.index]) if o.index in news else o for o in outcomes]

    def _oldest(self, outcome: Outcome, give_up: float | None) -> Call[Outcome]:
        if outcome.job is None or _is_over(outcome):
            return outcome
        left_s = None if give_up is None else max(0.0, give_up - self.jobs.asker.clock())
        return Outcome(outcome.index, (yield from self.jobs.wait(outcome.job.id, left_s)))

    def _end(self, outcome: Outcome) -> Call[Outcome]:
        if outcome.error is not None or outcome.job is None:
            return outcome
        try:
            if error := job_error(outcome.job):
                raise error
            return replace(outcome, results=(yield from self.jobs.results(Finished(outcome.job))))
        except TidemillError as error:
            return replace(outcome, error=error)


def _is_over(outcome: Outcome) -> bool:
    return outcome.job is None or outcome.error is not None or outcome.job.done


def _with(outcome: Outcome, news: Snapshot | Exception) -> Outcome:
    return replace(outcome, error=news) if isinstance(news, Exception) else replace(outcome, job=news)


def _take(source: Iterator[Payload], count: int) -> list[Payload]:
    return [payload for _, payload in zip(range(count), source, strict=False)]
