"""One child process: started so that it cannot outlive us, waited for, ended politely or not."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tidemill.local.logs import LogFile
from tidemill.local.spawn import spawn

# Only where the kernel has no pidfd: how often we look whether the child has ended.
_POLL_S = 0.1


@dataclass
class Child:
    """A started process. `status` is None while it runs, then its exit code, negative for a signal."""

    pid: int
    log_mark: int
    started_at: float = field(default_factory=time.time)
    began: float = field(default_factory=time.monotonic)
    status: int | None = None
    _ended: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    def start(cls, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path | None, log: LogFile) -> "Child":
        """Starts it; from the main thread, with a running loop."""
        mark = log.size()
        with log.open() as output:
            process = spawn(argv, env=env, cwd=cwd, output=output)
        process.returncode = 0  # we wait for it ourselves; else `subprocess` would, too
        child = cls(process.pid, mark)
        child._watch()
        return child

    @property
    def alive(self) -> bool:
        return self.status is None

    @property
    def uptime_s(self) -> float:
        return time.monotonic() - self.began

    async def wait(self) -> int:
        """Its exit code, once it has ended."""
        await self._ended.wait()
        assert self.status is not None
        return self.status

    async def ends_within(self, wait_s: float) -> bool:
        """Waits at most this long; whether it has ended."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), wait_s)
        return not self.alive

    async def end(self, grace_s: float) -> int:
        """Asks it to end (SIGTERM), and after `grace_s` makes it end."""
        self._signal(signal.SIGTERM)
        if not await self.ends_within(grace_s):
            self.kill()
        return await self.wait()

    def kill(self) -> None:
        """SIGKILL for it and its process group."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        # While it is not reaped its number cannot belong to another process.
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            watcher = os.pidfd_open(self.pid)
        except OSError:
            loop.call_later(_POLL_S, self._poll)
            return

        def ended() -> None:
            loop.remove_reader(watcher)
            os.close(watcher)
            self._reap()

        loop.add_reader(watcher, ended)

    def _poll(self) -> None:
        if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            asyncio.get_running_loop().call_later(_POLL_S, self._poll)
        else:
            self._reap()

    def _reap(self) -> None:
        # Whatever it left in its group ends before the number of the group becomes free.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        self.status = os.waitstatus_to_exitcode(status)
        self._ended.set()
