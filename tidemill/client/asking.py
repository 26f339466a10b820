"""Asking once more: which failures are worth another try, when, and until when.

A request is repeated when the service does not answer, or says that it takes nothing now (503), or that what is behind
it does not (502). Sending it twice does no harm: submits and retries carry an idempotency key. The
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
_WORTH_IT = frozenset({502, 503})
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
        pause_s, hops, sent = _FIRST_PAUSE_S, 3, False
        while True:
            wanted_s = pause_s * (0.5 + self.jitter())
            failure: TidemillError
            try:
                response: Response = yield request
            except NoAnswer as error:
                # The last try may not have reached a service that carried out an earlier one.
                sent = error.sent = sent or error.sent
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
                sent, failure = True, problem(response)
                if response.status not in _WORTH_IT:
                    raise failure
                wanted_s = max(wanted_s, _retry_after(response))
            if self.clock() + wanted_s > give_up:
                raise failure
            yield Pause(wanted_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


def _retry_after(response: Response) -> float:
    text = response.headers.get("retry-after", "")
    return float(text) if text.isdecimal() else 0.0
