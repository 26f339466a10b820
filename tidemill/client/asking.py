"""Asking once more: which failures are worth another try, when, and until when.

A request is repeated when it cannot have arrived, when the service says that it takes nothing now (503), or when the
connection broke and sending it twice does no harm. Submits carry an idempotency key, so they are of that kind. The
pauses grow and are jittered, so that clients of a restarted service do not come back all at once.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from tidemill.client.problems import problem
from tidemill.client.wire import Call, NoAnswer, Pause, Request, Response
from tidemill.errors import TidemillError

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
_ELSEWHERE = frozenset({302, 303, 307, 308})


@dataclass(frozen=True)
class Asker:
    """Asks, and asks again for `retry_s` seconds. Time and chance come in as arguments."""

    retry_s: float = 10.0
    clock: Callable[[], float] = time.monotonic
    jitter: Callable[[], float] = random.random

    def ask(self, request: Request, *, retry_s: float | None = None) -> Call[Response]:
        """Give the good answer.

        Raises:
            TidemillError: what the service said, or `NoAnswer`.
        """
        give_up = self.clock() + (self.retry_s if retry_s is None else retry_s)
        pause_s, hops = _FIRST_PAUSE_S, 3
        while True:
            wanted_s = pause_s * (0.5 + self.jitter())
            failure: TidemillError
            try:
                response: Response = yield request
            except NoAnswer as error:
                if error.sent and not request.repeatable:
                    raise
                failure = error
            else:
                if response.ok:
                    return response
                if (
                    response.status in _ELSEWHERE
                    and request.method == "GET"
                    and hops
                    and "location" in response.headers
                ):
                    # Not our address any more, so the driver sends no token with it.
                    request, hops = replace(request, path=response.headers["location"], query={}), hops - 1
                    continue
                failure = problem(response)
                if not _worth_it(response, request):
                    raise failure
                wanted_s = max(wanted_s, _retry_after(response))
            if self.clock() + wanted_s > give_up:
                raise failure
            yield Pause(wanted_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


def _worth_it(response: Response, request: Request) -> bool:
    return response.status == 503 or (response.status == 502 and request.repeatable)


def _retry_after(response: Response) -> float:
    text = response.headers.get("retry-after", "")
    return float(text) if text.isdecimal() else 0.0
