"""Asking a server whether it is ready: a check returns, or raises `NotReady` with the reason.

Checks are plain blocking functions with short time-outs, so that the supervisor (in a thread) and test fixtures (in
place) use the same ones.
"""

import http.client
import time
from collections.abc import Callable, Mapping

from tidemill.local.ports import LOOPBACK

Check = Callable[[], None]


class NotReady(Exception):
    """The server does not serve yet; the text says what it answered."""


def http_check(port: int, path: str, *, headers: Mapping[str, str] | None = None, timeout_s: float = 2.0) -> Check:
    """A check that is satisfied by status 200 on `http://127.0.0.1:<port><path>`."""

    def check() -> None:
        connection = http.client.HTTPConnection(LOOPBACK, port, timeout=timeout_s)
        try:
            connection.request("GET", path, headers=dict(headers or {}))
            answer = connection.getresponse()
            body = answer.read(500)
        except (OSError, http.client.HTTPException) as error:
            raise NotReady(f"GET {path} on port {port}: {error or type(error).__name__}") from error
        finally:
            connection.close()
        if answer.status != 200:
            raise NotReady(f"GET {path} on port {port}: {answer.status} {body.decode('utf-8', 'replace')}".rstrip())

    return check


def wait_ready(check: Check, deadline_s: float, *, alive: Callable[[], bool], interval_s: float = 0.02) -> None:
    """Asks until the check is satisfied. Raises `NotReady` with the last reason at the deadline, or when it died."""
    give_up = time.monotonic() + deadline_s
    while True:
        try:
            return check()
        except NotReady as error:
            if not alive():
                raise NotReady(f"it ended before it was ready ({error})") from error
            if time.monotonic() >= give_up:
                raise NotReady(f"not ready after {deadline_s:g} s: {error}") from error
        time.sleep(interval_s)
