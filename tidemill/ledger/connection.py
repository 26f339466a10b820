"""The way to Redis: connections with time-outs, scripts by SHA, errors of ours.

A script that is safe to repeat is repeated twice when the connection broke; its reply may have been lost, so those
that hand out tokens take the nonce of the call and give the same again. Everything else surfaces at once as
`LedgerUnavailable`. Blocking reads have connections of their own, whose socket time-out is longer than the block.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as ConnectionBroke
from redis.exceptions import NoScriptError, OutOfMemoryError, RedisError, ResponseError
from redis.exceptions import TimeoutError as ConnectionTimedOut
from redis.retry import Retry

from tidemill.errors import LedgerUnavailable
from tidemill.ledger.keys import Keys
from tidemill.ledger.scripting import script

Arg = str | int | float | bytes
T = TypeVar("T")

CONNECT_S = 3.0
ANSWER_S = 5.0
BLOCK_S = 10.0  # a longer block is made of several
_PAUSES_S = (0.05, 0.3)
_CONNECTIONS = 64
_NO_RETRY = Retry(NoBackoff(), 0)


@contextmanager
def translated() -> Iterator[None]:
    """Turn the driver's errors into `LedgerUnavailable`, with the driver's as the cause."""
    try:
        yield
    except ResponseError as error:
        text = str(error)
        if text.startswith("NOEPOCH"):
            raise LedgerUnavailable(
                "the ledger holds no epoch yet",
                code="no_epoch",
                hint="The placement service starts one within seconds; `tidemill doctor` says whether it runs.",
            ) from error
        if isinstance(error, OutOfMemoryError) or text.startswith("OOM"):
            raise LedgerUnavailable(
                "the ledger's memory is full", code="ledger_full", hint="Give Redis more memory (maxmemory)."
            ) from error
        raise LedgerUnavailable(f"Redis refused: {text}") from error
    except RedisError as error:
        raise LedgerUnavailable(f"Redis does not answer: {error}") from error


class Connection:
    """Two pools of connections to one Redis: for calls, and for reads that block. Any thread may use it."""

    def __init__(self, url: str, prefix: str) -> None:
        self.keys = Keys(prefix)
        self.calls = _client(url, ANSWER_S)
        self.blocking = _client(url, BLOCK_S + ANSWER_S)

    def run(self, name: str, *args: Arg, repeat: bool = True) -> Any:
        """Run a script; `repeat` says that it is safe to repeat."""
        call = self._call(name, lambda: args)
        return self.attempt(call) if repeat else self.once(call)

    def run_again(self, name: str, *args: Arg) -> Any:
        """Run a script whose last argument says whether the call is a repetition (0, 1)."""
        repeated = iter((0,))
        return self.attempt(self._call(name, lambda: (*args, next(repeated, 1))))

    def _call(self, name: str, args: Callable[[], tuple[Arg, ...]]) -> Callable[[], Any]:
        wanted = script(name)

        def call() -> Any:
            values = args()
            try:
                return self.calls.evalsha(wanted.sha, 1, self.keys.prefix, *values)
            except NoScriptError:
                return self.calls.eval(wanted.text, 1, self.keys.prefix, *values)

        return call

    def command(self, *parts: Arg, repeat: bool = True) -> Any:
        """Do one plain command; the reply is as redis-py shapes it."""
        call: Callable[[], Any] = partial(self.calls.execute_command, *parts)
        return self.attempt(call) if repeat else self.once(call)

    def together(self, *commands: tuple[Arg, ...], repeat: bool = True) -> list[Any]:
        """Do several commands as one transaction and give their replies."""

        def call() -> list[Any]:
            with self.calls.pipeline(transaction=True) as transaction:
                queue: Callable[..., Any] = transaction.execute_command
                for parts in commands:
                    queue(*parts)
                return transaction.execute()

        return self.attempt(call) if repeat else self.once(call)

    def once(self, call: Callable[[], T]) -> T:
        """Do a call that is not safe to repeat."""
        with translated():
            return call()

    def attempt(self, call: Callable[[], T]) -> T:
        """Do a call, again after a broken connection."""
        for pause_s in _PAUSES_S:
            try:
                with translated():
                    return call()
            except LedgerUnavailable as error:
                if not isinstance(error.__cause__, ConnectionBroke | ConnectionTimedOut):
                    raise
                time.sleep(pause_s)
        return self.once(call)

    def read_stream(self, key: str, after: str, block_s: float, limit: int) -> list[tuple[str, dict[str, str]]]:
        """Read entries (position, fields) after a position, waiting up to `block_s` for the first one."""
        give_up = time.monotonic() + block_s
        if after == "$":
            if block_s <= 0:
                return []
            newest = self.command("XREVRANGE", key, "+", "-", "COUNT", 1)
            after = newest[0][0] if newest else "0"
        while True:
            left_s = min(give_up - time.monotonic(), BLOCK_S)
            block_ms = max(1, round(left_s * 1000)) if left_s > 0 else None
            client = self.blocking if block_ms else self.calls
            reply: Any = self.attempt(partial(client.xread, {key: after}, count=limit, block=block_ms))
            if reply:
                return list(reply[0][1])
            if block_ms is None:
                return []

    def close(self) -> None:
        """Close all connections."""
        self.calls.close()
        self.blocking.close()


def _client(url: str, answer_s: float) -> redis.Redis:
    pool = redis.BlockingConnectionPool.from_url(
        url,
        max_connections=_CONNECTIONS,
        timeout=ANSWER_S,
        decode_responses=True,
        encoding_errors="surrogatepass",
        protocol=2,
        socket_connect_timeout=CONNECT_S,
        socket_timeout=answer_s,
        socket_keepalive=True,
        health_check_interval=30,
        retry=_NO_RETRY,
    )
    return redis.Redis.from_pool(pool)
