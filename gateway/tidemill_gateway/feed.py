"""One reader of the transition stream for everybody who waits: hundreds of waits cost one thread and no polling.

The reader runs only while somebody waits. A wait also looks at its job every few seconds by itself, so that a line that
was trimmed, or lost with Redis, delays it and no more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import structlog

from tidemill.errors import TidemillError
from tidemill.ledger.api import Ledger, Transition
from tidemill.models import Job

_BLOCK_S = 0.5
_LOOK_S = 3.0
T = TypeVar("T")
Lines = asyncio.Queue[Transition]
log = structlog.get_logger(__name__)


class Feed:
    """Hands transitions to those who subscribed to a job. Belongs to one event loop."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._queues: dict[str, set[Lines]] = {}
        self._reader: asyncio.Task[None] | None = None
        self._reading: asyncio.Future[None] | None = None
        self._thread: ThreadPoolExecutor | None = None

    @contextlib.asynccontextmanager
    async def subscribe(self, job_id: str) -> AsyncIterator[Lines]:
        """Give the lines of a job from now on: what happens after this begins is in the queue.

        Raises:
            LedgerUnavailable: Redis does not answer.
        """
        lines: Lines = asyncio.Queue()
        self._queues.setdefault(job_id, set()).add(lines)
        try:
            if self._reader is None or self._reader.done():
                self._reading = asyncio.get_running_loop().create_future()
                self._reader = asyncio.create_task(self._read(self._reading))
            if self._reading is not None:
                await asyncio.shield(self._reading)
            yield lines
        finally:
            left = self._queues[job_id]
            left.discard(lines)
            if not left:
                del self._queues[job_id]

    async def wait(self, job_id: str, timeout_s: float) -> Job | None:
        """Give the job when it is over, or as it is after `timeout_s`; None when there is none.

        Raises:
            LedgerUnavailable: Redis does not answer.
        """
        job = await asyncio.to_thread(self._ledger.job, job_id)
        if job is None or job.state.terminal or timeout_s <= 0:
            return job
        give_up = asyncio.get_running_loop().time() + timeout_s
        async with self.subscribe(job_id) as lines:
            while True:
                job = await asyncio.to_thread(self._ledger.job, job_id)
                left_s = give_up - asyncio.get_running_loop().time()
                if job is None or job.state.terminal or left_s <= 0:
                    return job
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left_s, _LOOK_S)):
                        while not (await lines.get()).state.terminal:
                            continue

    async def stop(self) -> None:
        """End the reader, at most half a second later."""
        if self._reader is not None:
            self._reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None

    async def _read(self, reading: asyncio.Future[None]) -> None:
        try:
            position = await self._call(self._ledger.last_position)
        except TidemillError as error:
            reading.set_exception(error)
            reading.exception()  # those who wait get it; nobody may
            return
        reading.set_result(None)
        while self._queues:
            try:
                found = await self._call(lambda at=position: self._ledger.transitions(at, _BLOCK_S))  # type: ignore[misc]
            except TidemillError as error:
                log.warning("feed.interrupted", code=error.error_code, error=str(error))
                await asyncio.sleep(_BLOCK_S)
                continue
            for line in found:
                position = line.position
                for lines in self._queues.get(line.job_id, ()):
                    lines.put_nowait(line)

    async def _call(self, function: Callable[[], T]) -> T:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="feed")
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)
