"""Lease renewal for all attempts of an agent: one ledger call for all of them, on a thread that does nothing else.

An attempt holds a `Lease` for as long as it works. Its `cancelled` and `lost` say what the last renewal answered; both
call the attempt's `interrupt` once, from the renewing thread. When the ledger does not answer for longer than the
lease, the attempt goes on: the commit record decides what counts (an old attempt's outputs are as good).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import structlog

from tidemill.errors import ServiceUnavailable
from tidemill.ledger.api import Ledger, Token

_LOOK_S = 0.5  # logs and progress go out as often
log = structlog.get_logger(__name__)


class Lease:
    """One attempt's right to work. `lines` of log wait here for the next flush."""

    def __init__(self, token: Token, interrupt: Callable[[], None]) -> None:
        self.token = token
        self.cancelled = False
        self.lost = False
        self.interrupt = interrupt
        self.lines: list[tuple[str, str]] = []
        self.progress: tuple[float, float | None, str | None] | None = None
        self._mutex = threading.Lock()

    @property
    def over(self) -> bool:
        return self.cancelled or self.lost

    def say(self, stream: str, text: str) -> None:
        """Add a line to the live log; it is sent with the next flush."""
        with self._mutex:
            if len(self.lines) < 2000:
                self.lines.append((stream, text))

    def take_lines(self) -> list[tuple[str, str]]:
        with self._mutex:
            lines, self.lines = self.lines, []
            return lines


class LeaseKeeper:
    """Renews all leases of an agent.

    Args:
        ledger: where they are held.
        lease_s: seconds a renewal lasts.
        every_s: seconds between two renewals.
    """

    def __init__(self, ledger: Ledger, lease_s: float, every_s: float) -> None:
        self._ledger = ledger
        self._lease_s = lease_s
        # A cancel is heard within this time; with the grace of a second the process is gone within two.
        self._every_s = min(every_s, lease_s / 4, 0.75)
        self._leases: dict[str, Lease] = {}
        self._mutex = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leases", daemon=True)
        self._thread.start()

    @contextmanager
    def hold(self, token: Token, interrupt: Callable[[], None]) -> Iterator[Lease]:
        """Keep the lease of a claimed job for the time of the block."""
        lease = Lease(token, interrupt)
        with self._mutex:
            self._leases[token.nonce] = lease
        try:
            yield lease
        finally:
            with self._mutex:
                self._leases.pop(token.nonce, None)

    def held(self) -> Sequence[Lease]:
        with self._mutex:
            return list(self._leases.values())

    def flush(self, lease: Lease) -> None:
        """Send the waiting log lines and the last progress of an attempt.

        Raises:
            ServiceUnavailable: when the ledger does not answer; the lines are gone, the store keeps the whole log.
        """
        if lines := lease.take_lines():
            self._ledger.append_log(lease.token, lines)
        if (progress := lease.progress) is not None:
            lease.progress = None
            self._ledger.progress(lease.token, *progress)

    def close(self) -> None:
        self._closing.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        """Looks twice a second, so that no attempt waits for this thread to wake: its claim gave it a whole lease."""
        renewed_at = time.monotonic()
        while not self._closing.wait(min(_LOOK_S, self._every_s)):
            leases = self.held()
            try:
                if leases and time.monotonic() - renewed_at >= self._every_s:
                    self._renew(leases)
                    renewed_at = time.monotonic()
                for lease in leases:
                    self.flush(lease)
            except ServiceUnavailable as error:
                log.warning("leases.ledger_silent", held=len(leases), error=str(error))
            except Exception:  # without this thread every lease of the agent is lost
                log.exception("leases.broke", held=len(leases))

    def _renew(self, leases: Sequence[Lease]) -> None:
        answers = self._ledger.renew([lease.token for lease in leases], self._lease_s)
        for lease, answer in zip(leases, answers, strict=True):
            was_over = lease.over
            lease.cancelled = lease.cancelled or answer.cancel
            lease.lost = not answer.held
            if lease.over and not was_over:
                log.info("lease.interrupted", job_id=lease.token.job_id, lost=lease.lost, cancelled=lease.cancelled)
                lease.interrupt()
