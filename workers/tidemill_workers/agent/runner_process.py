"""A runner's processes as the agent holds them: one thread per runner that moves bytes and keeps deadlines.

The thread waits on the replies, on stdout and stderr, and on the guard's socket. It never waits for anything else, so
a function can always print, and a deadline is kept whatever the callers of the runner are busy with. What it learns
it tells through callbacks, which must be quick. A callback that fails on a message ends the runner like what is no
message at all: the function can write to the pipe of the replies, so neither may end this thread.

Order: output that was printed before a reply is handed on before the reply. The end is told once, as the last thing.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from tidemill_workers.runner import wire

_log = structlog.get_logger(__name__)
_CHUNK = 64 * 1024
# Between a reply and its delivery at most so much output is taken per stream: a thread that prints for ever must not
# hold it up.
_DRAIN_LIMIT_BYTES = 4 * 1024 * 1024
# The longest reply is an error: message and traceback have 36,864 characters of at most 12 bytes.
_REPLY_LIMIT_BYTES = 1024 * 1024
_GUARD_GRACE_S = 1.2
_NAP_S = 5.0  # the thread looks at its limit as often; only a nearer one needs to wake it


@dataclass(frozen=True)
class End:
    """How a runner ended. `status` is a wait status (None when the guard could not tell), `reason` why we ended it
    (None when it ended by itself)."""

    status: int | None
    reason: str | None


class RunnerProcess:
    """Starts at construction. Raises OSError when there are no more processes or descriptors to be had."""

    def __init__(
        self,
        lib: Path,
        on_message: Callable[[wire.Message], None],
        on_output: Callable[[str, bytes], None],
        on_end: Callable[[End], None],
    ) -> None:
        self._on_message, self._on_output, self._on_end = on_message, on_output, on_end
        self._decoder = wire.Decoder(_REPLY_LIMIT_BYTES)
        self._violated = False
        self._guard_text = b""
        self._status: int | None = None
        self.pid: int | None = None
        self._write_lock = threading.Lock()
        self._limit_lock = threading.Lock()
        self._limit: tuple[float, str] | None = None
        self._killed_for: str | None = None
        self._hard_kill_at: float | None = None
        self._closed = False
        self._ended = False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._guard_socket, guard_end = socket.socketpair()
        requests_r, self._requests = os.pipe()
        self._replies, replies_w = os.pipe()
        command = [
            sys.executable,
            "-I",
            "-S",
            str(lib / "launch.py"),
            str(requests_r),
            str(replies_w),
            str(guard_end.fileno()),
        ]
        try:
            self._guard = subprocess.Popen(
                command,
                env=_guard_environment(),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(requests_r, replies_w, guard_end.fileno()),
                start_new_session=True,
            )
        except BaseException:
            self._close()
            raise
        finally:
            guard_end.close()
            os.close(requests_r)
            os.close(replies_w)
        self._selector = selectors.DefaultSelector()
        self._register()
        threading.Thread(target=self._pump, name=f"runner-{self._guard.pid}", daemon=True).start()

    @property
    def guard_pid(self) -> int:
        """The process that ends the runner; the runner's own `pid` is known once it has started."""
        return self._guard.pid

    def send(self, message: wire.Message) -> None:
        """Hands a message to the runner. One that is gone, or ends meanwhile, is told about by `on_end`, not here."""
        data = memoryview(wire.encode(message))
        with self._write_lock:
            if self._closed:
                return
            with suppress(BrokenPipeError):
                while data:
                    data = data[os.write(self._requests, data) :]

    def limit(self, at: float, reason: str) -> None:
        """Ends everything at that moment (monotonic clock) for that reason, unless an earlier limit is set."""
        with self._limit_lock:
            if self._limit is None or at < self._limit[0]:
                self._limit = (at, reason)
            if not self._closed and at < time.monotonic() + _NAP_S:
                os.eventfd_write(self._wake, 1)

    def unlimit(self) -> None:
        """Takes back the limits that have not come."""
        with self._limit_lock:
            self._limit = None

    def _register(self) -> None:
        assert self._guard.stdout is not None
        assert self._guard.stderr is not None
        outputs = {"stdout": self._guard.stdout.fileno(), "stderr": self._guard.stderr.fileno()}
        for fd in (self._replies, *outputs.values()):
            os.set_blocking(fd, False)
        self._guard_socket.setblocking(False)
        self._outputs = outputs
        self._selector.register(self._wake, selectors.EVENT_READ, self._woken)
        self._selector.register(self._guard_socket, selectors.EVENT_READ, self._read_guard)
        self._selector.register(self._replies, selectors.EVENT_READ, self._read_replies)
        for name, fd in outputs.items():
            self._selector.register(
                fd, selectors.EVENT_READ, lambda name=name, fd=fd: self._read_output(name, fd, _CHUNK)
            )

    def _pump(self) -> None:
        while not self._ended:
            for key, _ in self._selector.select(self._wait_s()):
                key.data()
            self._enforce()
        taken = 0
        while taken < _DRAIN_LIMIT_BYTES and (size := self._read_replies()):
            taken += size
        self._drain()
        try:
            self._guard.wait(1.0)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
        self._close()
        self._on_end(End(self._status, self._killed_for))

    def _wait_s(self) -> float:
        at = self._hard_kill_at
        if at is None:
            with self._limit_lock:
                at = None if self._limit is None else self._limit[0]
        return _NAP_S if at is None else min(_NAP_S, max(0.0, at - time.monotonic()))

    def _enforce(self) -> None:
        """Ends the runner when its time has come: by the guard, and when that does not answer, by hand."""
        now = time.monotonic()
        if self._hard_kill_at is not None:
            if now >= self._hard_kill_at:
                self._kill_by_hand()
                self._ended = True
            return
        with self._limit_lock:
            if self._limit is None or now < self._limit[0]:
                return
            self._killed_for = self._limit[1]
        self._hard_kill_at = now + _GUARD_GRACE_S
        with suppress(OSError):  # a guard that has just ended is what we want
            self._guard_socket.send(b"k")

    def _kill_by_hand(self) -> None:
        for pid in (self.pid, self._guard.pid):
            if pid is not None:
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)

    def _read_guard(self) -> None:
        try:
            data = self._guard_socket.recv(4096)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        self._guard_text += data
        *lines, self._guard_text = self._guard_text.split(b"\n")
        for kind, _, value in (line.partition(b" ") for line in lines):
            if kind == b"p":
                self.pid = int(value)
            elif value:
                self._status = int(value)
        if not data:
            if self._status is None and self._hard_kill_at is None:
                self._kill_by_hand()  # somebody killed the guard: the function must not outlive it
            self._ended = True

    def _read_replies(self) -> int:
        """One chunk, so that who writes without end keeps no deadline away. Gives the bytes read."""
        if self._violated:
            return 0
        try:
            chunk = os.read(self._replies, _CHUNK)
        except BlockingIOError:
            return 0
        if not chunk:
            self._forget(self._replies)
            return 0
        try:
            for message in self._decoder.feed(chunk):
                if message["type"] in ("result", "error", "ready"):
                    self._drain()
                self._on_message(message)
        except Exception as error:  # noqa: BLE001 - whatever the function wrote; without this thread its slot is lost
            _log.warning("runner.protocol_violated", pid=self.pid, error=f"{type(error).__name__}: {error}"[:300])
            self._violated = True
            self._forget(self._replies)
            self.limit(0.0, "protocol")
        return len(chunk)

    def _read_output(self, name: str, fd: int, size: int) -> int:
        try:
            chunk = os.read(fd, size)
        except BlockingIOError:
            return 0
        if chunk:
            self._on_output(name, chunk)
        else:
            self._forget(fd)
            self._outputs.pop(name, None)
        return len(chunk)

    def _drain(self) -> None:
        for name, fd in list(self._outputs.items()):
            taken = 0
            while taken < _DRAIN_LIMIT_BYTES:
                size = self._read_output(name, fd, _CHUNK)
                if not size:
                    break
                taken += size

    def _woken(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def _forget(self, fd: int) -> None:
        with suppress(KeyError):
            self._selector.unregister(fd)

    def _close(self) -> None:
        with self._write_lock, self._limit_lock:
            self._closed = True
            for fd in (self._requests, self._replies, self._wake):
                os.close(fd)
        self._guard_socket.close()
        guard: Any = getattr(self, "_guard", None)
        if guard is not None:
            self._selector.close()
            guard.stdout.close()
            guard.stderr.close()


def _guard_environment() -> dict[str, str]:
    """What our own interpreter may need to start. The function's own comes with the launch order."""
    return {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
