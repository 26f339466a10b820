"""A job as a future: it polls, and neither a time-out nor Ctrl-C ever cancels it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tidemill.client.jobs import Finished, LogLine
from tidemill.client.output import AsyncOutput, Output
from tidemill.client.problems import job_error
from tidemill.client.values import Cost, Placement, Progress, Snapshot
from tidemill.errors import TidemillError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tidemill.client.aio import AsyncClient
    from tidemill.client.sync import Client


class JobFields:
    """What the service said last: `id`, `function`, `state`, `error`, and all of it as `data`."""

    def __init__(self, snapshot: Snapshot, base_url: str) -> None:
        self._snapshot = snapshot
        self._base_url = base_url

    @property
    def id(self) -> str:
        return self._snapshot.id

    @property
    def function(self) -> str:
        return self._snapshot.function

    @property
    def state(self) -> str:
        """queued, released, running, committed, succeeded, failed or cancelled: as heard last."""
        return self._snapshot.state

    @property
    def error(self) -> TidemillError | None:
        """The error that `result()` raises, once the job is known to have failed or to be cancelled."""
        return job_error(self._snapshot)

    @property
    def data(self) -> Mapping[str, Any]:
        """The job as JSON, as heard last."""
        return self._snapshot.data

    @property
    def url(self) -> str:
        """The address of the job."""
        return f"{self._base_url}/api/v1/jobs/{self.id}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.function} {self.state}>"


class Job(JobFields):
    """A job as a future. `progress`, `cost`, `placement` and `outputs` ask the service while the job is not over."""

    def __init__(self, client: Client, snapshot: Snapshot) -> None:
        super().__init__(snapshot, client.url)
        self._client = client
        self._finished: Finished | None = None

    @property
    def progress(self) -> Progress | None:
        """How far the function says it is."""
        return self._now().progress

    @property
    def cost(self) -> Cost:
        """US dollars and GPU seconds."""
        return self._now().cost

    @property
    def placement(self) -> Placement | None:
        """The pool, why it was chosen, and how the others compared."""
        return self._now().placement

    @property
    def outputs(self) -> list[Output]:
        """The results as files, `result.json` among them; empty until the job has succeeded."""
        return [Output(self._client, self.id, info) for info in self._now().outputs]

    def refresh(self) -> Job:
        """Ask for the present state."""
        self._snapshot = self._client._run(self._client._jobs.look(self.id))
        return self

    def done(self) -> bool:
        """Whether the job is over, whatever its end."""
        return self._now().done

    def wait(self, timeout: float | None = None) -> Job:
        """Wait until the job is over, whatever its end.

        Raises:
            WaitTimeout: `timeout` seconds have passed; the job goes on.
        """
        if not self._snapshot.done:
            self._snapshot = self._client._run(self._client._jobs.wait(self.id, timeout))
        return self

    def result(self, timeout: float | None = None) -> Any:
        """Wait, and give what the function gave.

        The value of `result.json`, or an `Output` for one file of another name, or a dict by name when there are
        several; None when there is nothing. `timeout` is in seconds; 0 asks once.

        Raises:
            FunctionFailed: with the remote traceback and the end of the log.
            JobCancelled: somebody cancelled it, or its input changed.
            NoCapacity: no pool can ever run it.
            WaitTimeout: it is not over yet; it goes on.
        """
        if self._finished is None:
            self.wait(timeout)
            self._finished = Finished(self._client._run(self._client._jobs.finish(self._snapshot)))
        return self._client._value(self._finished)

    def logs(self) -> str:
        """What the function has printed and logged so far."""
        return self._client._run(self._client._jobs.logs(self.id))

    def follow(self) -> Iterator[LogLine]:
        """Give the lines of the log as they come, until the job is over."""
        return self._client._iterate(self._client._jobs.follow(self.id))

    def cancel(self) -> Job:
        """Ask for its end. Queued jobs end at once, running ones soon; one that is over stays as it is."""
        self._snapshot = self._client._run(self._client._jobs.cancel(self.id))
        return self

    def retry(self, *, key: str | None = None) -> Job:
        """Run it again, as its next generation. The same `key` (idempotency key) does it once only."""
        self._snapshot = self._client._run(self._client._jobs.retry(self.id, key))
        self._finished = None
        return self

    def _now(self) -> Snapshot:
        if not self._snapshot.done:
            self.refresh()
        return self._snapshot


class AsyncJob(JobFields):
    """A job as a future. `progress`, `cost`, `placement` and `outputs` are as heard last; `refresh()` asks."""

    def __init__(self, client: AsyncClient, snapshot: Snapshot) -> None:
        super().__init__(snapshot, client.url)
        self._client = client
        self._finished: Finished | None = None

    @property
    def progress(self) -> Progress | None:
        """How far the function says it is."""
        return self._snapshot.progress

    @property
    def cost(self) -> Cost:
        """US dollars and GPU seconds."""
        return self._snapshot.cost

    @property
    def placement(self) -> Placement | None:
        """The pool, why it was chosen, and how the others compared."""
        return self._snapshot.placement

    @property
    def outputs(self) -> list[AsyncOutput]:
        """The results as files, `result.json` among them; empty until the job has succeeded."""
        return [AsyncOutput(self._client, self.id, info) for info in self._snapshot.outputs]

    async def refresh(self) -> AsyncJob:
        """Ask for the present state."""
        self._snapshot = await self._client._run(self._client._jobs.look(self.id))
        return self

    async def done(self) -> bool:
        """Whether the job is over, whatever its end."""
        if not self._snapshot.done:
            await self.refresh()
        return self._snapshot.done

    async def wait(self, timeout: float | None = None) -> AsyncJob:
        """Wait until the job is over, whatever its end; raises `WaitTimeout`."""
        if not self._snapshot.done:
            self._snapshot = await self._client._run(self._client._jobs.wait(self.id, timeout))
        return self

    async def result(self, timeout: float | None = None) -> Any:
        """Wait, and give what the function gave; see `Job.result`."""
        if self._finished is None:
            await self.wait(timeout)
            self._finished = Finished(await self._client._run(self._client._jobs.finish(self._snapshot)))
        return await self._client._value(self._finished)

    async def logs(self) -> str:
        """What the function has printed and logged so far."""
        return await self._client._run(self._client._jobs.logs(self.id))

    def follow(self) -> AsyncIterator[LogLine]:
        """Give the lines of the log as they come, until the job is over."""
        return self._client._iterate(self._client._jobs.follow(self.id))

    async def cancel(self) -> AsyncJob:
        """Ask for its end; see `Job.cancel`."""
        self._snapshot = await self._client._run(self._client._jobs.cancel(self.id))
        return self

    async def retry(self, *, key: str | None = None) -> AsyncJob:
        """Run it again, as its next generation; see `Job.retry`."""
        self._snapshot = await self._client._run(self._client._jobs.retry(self.id, key))
        self._finished = None
        return self
