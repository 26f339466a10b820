"""The client for asyncio, with the same names as `tidemill.client.sync`.

Every method that asks the service may raise what `tidemill.errors` lists.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tidemill.client.asking import Asker
from tidemill.client.catalogue import CatalogueCalls
from tidemill.client.drivers import AsyncDriver
from tidemill.client.job import AsyncJob
from tidemill.client.jobs import Finished, JobCalls
from tidemill.client.mapping import MapCall
from tidemill.client.output import AsyncOutput, unpack
from tidemill.client.payloads import Payload
from tidemill.client.profile import resolve
from tidemill.client.wire import Call

T = TypeVar("T")


class AsyncClient:
    """A client of one Tidemill for asyncio; one event loop may use it.

    The address and the token come from the arguments, else `TIDEMILL_URL` and `TIDEMILL_TOKEN`, else the profile that
    `tidemill up` wrote, else `http://127.0.0.1:8080`. `retry_s` is how long a service that does not answer is asked
    again, in seconds. Closing is optional.
    """

    def __init__(self, url: str | None = None, token: str | None = None, *, retry_s: float = 10.0) -> None:
        profile = resolve(url, token)
        asker = Asker(retry_s)
        self.url = profile.url
        self._jobs = JobCalls(asker)
        self._catalogue = CatalogueCalls(asker)
        self._driver = AsyncDriver(profile)

    async def submit(
        self, function: str, file: Payload, *, params: Mapping[str, Any] | None = None, key: str | None = None
    ) -> AsyncJob:
        """Start a job and do not wait.

        `file` is a path, bytes, an open binary file, a `tidemill.File`, or `{"bucket": ..., "key": ...}` for an object
        that is in the store. The same `key` (idempotency key) with the same input is the same job.
        """
        return AsyncJob(self, await self._run(self._jobs.submit(function, file, params, key)))

    async def run(
        self,
        function: str,
        file: Payload,
        *,
        params: Mapping[str, Any] | None = None,
        key: str | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Submit, wait up to `timeout` seconds, and give what the function gave: see `Job.result`."""
        return await self._value(await self._run(self._jobs.run(function, file, params, key, timeout)))

    async def map(
        self,
        function: str,
        files: Iterable[Payload],
        *,
        params: Mapping[str, Any] | None = None,
        order_outputs: bool = True,
        return_exceptions: bool = False,
        concurrency: int = 64,
        timeout: float | None = None,
    ) -> AsyncIterator[Any]:
        """Run a function over many files and give the results as they come.

        In the order of the files, or with `order_outputs=False` as soon as each is there. A job that fails raises, or
        with `return_exceptions=True` gives its error in place of a result. At most `concurrency` jobs are under way.
        """
        call = MapCall(self._jobs, function, files, params, order_outputs, concurrency, timeout).call()
        async for outcome in self._driver.iterate(call):
            if outcome.error is None:
                yield unpack(outcome.results, _maker(self, outcome.job.id))
            elif return_exceptions:
                yield outcome.error
            else:
                raise outcome.error

    async def job(self, job_id: str) -> AsyncJob:
        """Give a job by its id."""
        return AsyncJob(self, await self._run(self._jobs.look(job_id)))

    async def jobs(
        self,
        *,
        state: str | None = None,
        function: str | None = None,
        since: float | None = None,
        reason: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[AsyncJob]:
        """Give every job, newest first, that passes the filters; `since` in seconds since 1970 (UTC)."""
        filters = {"state": state, "function": function, "reason": reason}
        filters["since"] = None if since is None else f"{since:.3f}"
        async for snapshot in self._driver.iterate(self._jobs.list(filters, limit)):
            yield AsyncJob(self, snapshot)

    async def functions(self) -> list[dict[str, Any]]:
        """The deployed functions."""
        return await self._run(self._catalogue.functions())

    async def function(self, name: str) -> dict[str, Any]:
        """One deployed function."""
        return await self._run(self._catalogue.function(name))

    async def deploy(self, folder: str | os.PathLike[str]) -> dict[str, Any]:
        """Check a function's folder and deploy it; give the deployed function."""
        return await self._run(self._catalogue.deploy(Path(folder)))

    async def delete_function(self, name: str) -> None:
        """Take a function away. Its queued jobs are cancelled, no object of yours is deleted."""
        await self._run(self._catalogue.delete_function(name))

    async def replay(
        self, name: str, *, prefix: str = "", failed_only: bool = False, dry_run: bool = False
    ) -> dict[str, Any]:
        """Start jobs for the objects below the function's triggers (and `prefix`) that were there before, or with
        `failed_only` its failed jobs once more. Give what was found: `found`, `started`, `known`, `ignored`, `refused`,
        `examples`, and `complete` (false: the service goes on by itself). `dry_run` starts nothing."""
        return await self._run(self._catalogue.replay(name, prefix, failed_only, dry_run))

    async def pools(self) -> list[dict[str, Any]]:
        """The pools, with their agents."""
        return await self._run(self._catalogue.pools())

    async def pool(self, name: str) -> dict[str, Any]:
        """One pool."""
        return await self._run(self._catalogue.pool(name))

    async def apply_pools(self, file: str | os.PathLike[str]) -> list[dict[str, Any]]:
        """Put the pools of a pools file in place."""
        return await self._run(self._catalogue.apply_pools_file(Path(file)))

    async def drain_pool(self, name: str) -> dict[str, Any]:
        """Let a pool finish what it runs, and give it no more."""
        return await self._run(self._catalogue.drain_pool(name))

    async def resume_pool(self, name: str) -> dict[str, Any]:
        """Let a drained pool take work again."""
        return await self._run(self._catalogue.resume_pool(name))

    async def delete_pool(self, name: str) -> None:
        """Take a pool away."""
        await self._run(self._catalogue.delete_pool(name))

    async def agents(self) -> list[dict[str, Any]]:
        """The agents that live now."""
        return await self._run(self._catalogue.agents())

    async def ignored(self, limit: int = 1000) -> list[dict[str, Any]]:
        """Objects under a trigger that are no job (`bucket`, `key`, `reason`, `at`), newest first, at most 10,000."""
        return await self._run(self._catalogue.ignored(limit))

    async def upload(self, file: str | os.PathLike[str], bucket: str, key: str) -> None:
        """Put a file into a bucket; a trigger on it starts its job."""
        await self._run(self._catalogue.upload(Path(file), bucket, key))

    async def close(self) -> None:
        """Close the connections. A client that is used again opens new ones."""
        await self._driver.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncClient {self.url}>"

    async def _run(self, call: Call[T]) -> T:
        return await self._driver.run(call)

    def _iterate(self, call: Call[Any]) -> AsyncIterator[Any]:
        return self._driver.iterate(call)

    async def _value(self, finished: Finished) -> Any:
        return unpack(await self._run(self._jobs.results(finished)), _maker(self, finished.job.id))


def _maker(client: AsyncClient, job_id: str) -> Any:
    return lambda info: AsyncOutput(client, job_id, info)
