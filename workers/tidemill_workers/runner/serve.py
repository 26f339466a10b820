"""The function's process: one message after the other, user code on the main thread.

A second thread reads the requests, so that a cancel arrives while a job runs, and so that the end of the pipe ends
the whole process group (the guard does that too, and better; this is for the case that the guard itself was killed).
Replies go to a descriptor with a high number, closed on exec: what the function starts cannot hold it, and a function
that closes or floods its stdout does not touch it.

Requests: `load` {code, handler | command, gpu}, `run` {number, code, job, file, params, output}, `cancel` {number},
`stop`. Replies: `ready`, `progress` {done, total, unit}, `log` {line}, `result` {}, `error` {phase, kind, code,
message, traceback, delay_s}.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import resource
import signal
import sys
import threading
from typing import Any, TextIO

from . import wire
from .calls import Calls
from .commands import Commands
from .failures import describe
from .reports import Reports


def serve(api: Any, requests_fd: int, replies_fd: int) -> None:
    """Serves the agent until it says stop, or the pipe ends. Returns only to let the interpreter end in its usual
    way."""
    requests_fd, replies_fd = _out_of_the_way(requests_fd), _out_of_the_way(replies_fd)
    reports = Reports(replies_fd)
    streams = _Streams()
    todo: queue.SimpleQueue[wire.Message | None] = queue.SimpleQueue()
    cancel = Cancel()
    threading.Thread(target=_read, args=(requests_fd, todo, cancel), name="tidemill-requests", daemon=True).start()
    function: Calls | Commands | None = None
    while True:
        message = todo.get()
        if message is None:
            return
        streams.restore()
        try:
            if message["type"] == "load":
                function = _load(api, message, reports, cancel)
                reply: wire.Message = {"type": "ready"}
            else:
                assert function is not None
                os.chdir(message["code"])
                _make_empty(message["output"])
                function.run(message)
                reply = {"type": "result"}
        except BaseException as error:
            phase = "load" if function is None else "run"
            reply = {"type": "error", "phase": phase, **describe(api, error, phase)}
        streams.flush()
        cancel.end()
        reports.finish(reply)
        if message["type"] == "run":
            _make_next(message["output"])
        message = None
        if reply["type"] == "error" and function is None:
            return


class Cancel:
    """Whether the agent asked to cancel the job that runs, and what to do at that moment.

    Jobs of this process are counted: a cancel that crossed the job's end on its way must not hit the next one.
    """

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._number: int | None = None
        self.on_ask: Any = None

    def begin(self, number: int) -> None:
        """A job was read from the pipe; a cancel that follows is for it, even if it has not started."""
        self._asked.clear()
        self._number = number

    def ask(self, number: int) -> None:
        if number != self._number:
            return
        self._asked.set()
        on_ask = self.on_ask
        if on_ask is not None:
            on_ask()

    def end(self) -> None:
        """The job is over."""
        self._number = None
        self.on_ask = None
        self._asked.clear()

    def asked(self) -> bool:
        return self._asked.is_set()


def _load(api: Any, message: wire.Message, reports: Reports, cancel: Cancel) -> Calls | Commands:
    code = message["code"]
    sys.path.insert(0, code)
    os.chdir(code)
    if message.get("command"):
        return Commands(message["command"], code, cancel)
    return Calls(api, message, reports, cancel)


def _read(fd: int, todo: queue.SimpleQueue[wire.Message | None], cancel: Cancel) -> None:
    while True:
        message = wire.receive(fd)
        if message is None:
            os.killpg(0, signal.SIGKILL)
        elif message["type"] == "cancel":
            cancel.ask(message["number"])
        elif message["type"] == "stop":
            todo.put(None)
        else:
            if message["type"] == "run":
                cancel.begin(message["number"])
            todo.put(message)


def _make_next(output: str) -> None:
    """The folder of the next job's outputs, made while nobody waits for it."""
    folder, number = os.path.split(output)
    with contextlib.suppress(OSError):  # then it is made when it is needed
        os.mkdir(os.path.join(folder, str(int(number) + 1)))


def _make_empty(output: str) -> None:
    """An empty folder, whatever a function that still runs in the background did to the one that was made."""
    try:
        os.mkdir(output)
    except FileExistsError:
        if os.path.islink(output) or os.listdir(output):
            os.rename(output, f"{output}-{os.getpid()}")
            os.mkdir(output)


def _out_of_the_way(fd: int) -> int:
    """A copy with a high number that no exec hands on."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    lowest = 900 if soft == resource.RLIM_INFINITY or soft > 1000 else max(16, soft // 2)
    copy = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest)
    os.close(fd)
    return copy


class _Streams:
    """stdout and stderr as they were at the start, whatever a job did to them."""

    def __init__(self) -> None:
        self._saved = {fd: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (1, 2)}
        self._saved = {fd: _out_of_the_way(copy) for fd, copy in self._saved.items()}
        self._reopen()

    def restore(self) -> None:
        for fd, saved in self._saved.items():
            os.dup2(saved, fd)
        if any(stream is None or stream.closed for stream in (sys.stdout, sys.stderr)):
            self._reopen()

    def flush(self) -> None:
        """What was printed must be in the pipe before the reply is. A function may have closed or replaced its
        streams."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()

    def _reopen(self) -> None:
        # Lines appear when they are printed; text that is not UTF-8 is shown escaped instead of failing the job.
        sys.stdout, sys.stderr = (_text_stream(fd) for fd in (1, 2))


def _text_stream(fd: int) -> TextIO:
    return open(fd, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)
