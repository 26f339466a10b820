"""What the function's process says while a job runs: progress and the lines of `ctx.log`."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time

from . import wire

# Progress is for people: more often than this is not worth a message.
_PROGRESS_EVERY_S = 0.1
_LINE_LIMIT = 8192


class Reports:
    """The way to the agent, shared by all threads of the function.

    A function may fork without exec (multiprocessing does); the copy must not speak in the name of the job: its log
    lines go to stderr, its progress nowhere, and when it comes back into our loop, it ends there.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._waiting: wire.Message | None = None
        self._next_progress_at = 0.0
        self.log = logging.Logger("tidemill.function", logging.DEBUG)
        self.log.addHandler(_Lines(self))

    def progress(self, done: float, total: float | None, unit: str | None) -> None:
        """Raises TypeError or ValueError, at the caller's line, for what is not a number."""
        message: wire.Message = {
            "type": "progress",
            "done": float(done),
            "total": None if total is None else float(total),
        }
        message["unit"] = None if unit is None else str(unit)[:64]
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._waiting = message
            if time.monotonic() >= self._next_progress_at:
                self._flush_progress()

    def line(self, text: str) -> None:
        """One line of the job's log."""
        if os.getpid() != self._pid:
            print(text, file=sys.stderr, flush=True)
            return
        with self._lock:
            wire.send(self._fd, {"type": "log", "line": text[:_LINE_LIMIT]})

    def end_copies(self) -> None:
        """Where a fork of the function would go on in our own code: it ends instead."""
        if os.getpid() != self._pid:
            os._exit(70)

    def finish(self, reply: wire.Message) -> None:
        """The last progress, then the reply."""
        self.end_copies()
        with self._lock:
            self._flush_progress()
            self._next_progress_at = 0.0
            wire.send(self._fd, reply)

    def _flush_progress(self) -> None:
        if self._waiting is not None:
            wire.send(self._fd, self._waiting)
            self._waiting = None
            self._next_progress_at = time.monotonic() + _PROGRESS_EVERY_S


class _Lines(logging.Handler):
    def __init__(self, reports: Reports) -> None:
        super().__init__()
        self._reports = reports
        self.setFormatter(logging.Formatter("%(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            for line in self.format(record).splitlines():
                self._reports.line(line)
        except Exception:
            self.handleError(record)
