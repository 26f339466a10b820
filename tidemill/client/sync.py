"""The client for ordinary code. Every method that asks the service may raise what `tidemill.errors` lists."""

from __future__ import annotations

import os
import weakref
from collections.abc import Generator, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tidemill.client.asking import Asker
from tidemill.client.catalogue import CatalogueCalls
from tidemill.client.drivers import Driver
from tidemill.client.job import Job
from tidemill.client.jobs import Finished, JobCalls
from tidemill.client.mapping import MapCall
from tidemill.client.output import Output, unpack
from tidemill.client.payloads import Payload
from tidemill.client.profile import resolve
from tidemill.client.wire import Call

T = TypeVar("T")


class Client:
    """A client of one Tidemill; any thread may use it.

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
        self._driver = Driver(profile)
        # Closing is optional, so a client that nobody holds any more closes its connections by itself.
        weakref.finalize(self, self._driver.close)

    def submit(
        self, function: str, file: Payload, *, params: Mapping[str, Any] | None = None, key: str | None = None
    ) -> Job:
        """Start a job and do not wait.

        `file` is a path, bytes, an open binary file, a `tidemill.File`, or `{"bucket": ..., "key": ...}` for an object
        that is in the store. The same `key` (idempotency key) with the same input is the same job.
        """
        return Job(self, self._run(self._jobs.submit(function, file, params, key)))

    def run(
        self,
        function: str,
        file: Payload,
        *,
        params: Mapping[str, Any] | None = None,
        key: str | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Submit, wait up to `timeout` seconds, and give what the function gave: see `Job.result`."""
        return self._value(self._run(self._jobs.run(function, file, params, key, timeout)))

    def map(
        self,
        function: str,
        files: Iterable[Payload],
        *,
        params: Mapping[str, Any] | None = None,
        order_outputs: bool = True,
        return_exceptions: bool = False,
        concurrency: int = 64,
        timeout: float | None = None,
    ) -> Iterator[Any]:
        """Run a function over many files and give the results as they come.

        In the order of the files, or with `order_outputs=False` as soon as each is there. A job that fails raises, or
        with `return_exceptions=True` gives its error in place of a result. At most `concurrency` jobs are under way.
        """
        call = MapCall(self._jobs, function, files, params, order_outputs, concurrency, timeout).call()
        for outcome in self._driver.iterate(call):
            if outcome.error is None:
                yield unpack(outcome.results, _maker(self, outcome.job.id))
            elif return_exceptions:
                yield outcome.error
            else:
                raise outcome.error

    def job(self, job_id: str) -> Job:
        """Give a job by its id."""
        return Job(self, self._run(self._jobs.look(job_id)))

    def jobs(
        self,
        *,
        state: str | None = None,
        function: str | None = None,
        since: float | None = None,
        reason: str | None = None,
        limit: int | None = None,
    ) -> Iterator[Job]:
        """Give every job, newest first, that passes the filters; `since` in seconds since 1970 (UTC)."""
        filters = {"state": state, "function": function, "reason": reason}
        filters["since"] = None if since is None else f"{since:.3f}"
        for snapshot in self._driver.iterate(self._jobs.list(filters, limit)):
            yield Job(self, snapshot)

    def functions(self) -> list[dict[str, Any]]:
        """The deployed functions."""
        return self._run(self._catalogue.functions())

    def function(self, name: str) -> dict[str, Any]:
        """One deployed function."""
        return self._run(self._catalogue.function(name))

    def deploy(self, folder: str | os.PathLike[str]) -> dict[str, Any]:
        """Check a function's folder and deploy it; give the deployed function."""
        return self._run(self._catalogue.deploy(Path(folder)))

    def delete_function(self, name: str) -> None:
        """Take a function away. Its queued jobs are cancelled, no object of yours is deleted."""
        self._run(self._catalogue.delete_function(name))

    def replay(
        self, name: str, *, prefix: str = "", failed_only: bool = False, dry_run: bool = False
    ) -> dict[str, Any]:
        """Start jobs for the objects below the function's triggers (and `prefix`) that were there before, or with
        `failed_only` its failed jobs once more. Give what was found: `found`, `started`, `known`, `ignored`, `refused`,
        `examples`, and `complete` (false: the service goes on by itself). `dry_run` starts nothing."""
        return self._run(self._catalogue.replay(name, prefix, failed_only, dry_run))

    def pools(self) -> list[dict[str, Any]]:
        """The pools, with their agents."""
        return self._run(self._catalogue.pools())

    def pool(self, name: str) -> dict[str, Any]:
        """One pool."""
        return self._run(self._catalogue.pool(name))

    def apply_pools(self, file: str | os.PathLike[str]) -> list[dict[str, Any]]:
        """Put the pools of a pools file in place."""
        return self._run(self._catalogue.apply_pools_file(Path(file)))

    def drain_pool(self, name: str) -> dict[str, Any]:
        """Let a pool finish what it runs, and give it no more."""
        return self._run(self._catalogue.drain_pool(name))

    def resume_pool(self, name: str) -> dict[str, Any]:
        """Let a drained pool take work again."""
        return self._run(self._catalogue.resume_pool(name))

    def delete_pool(self, name: str) -> None:
        """Take a pool away."""
        self._run(self._catalogue.delete_pool(name))

    def agents(self) -> list[dict[str, Any]]:
        """The agents that live now."""
        return self._run(self._catalogue.agents())

    def ignored(self, limit: int = 1000) -> list[dict[str, Any]]:
        """Objects under a trigger that are no job (`bucket`, `key`, `reason`, `at`), newest first, at most 10,000."""
        return self._run(self._catalogue.ignored(limit))

    def upload(self, file: str | os.PathLike[str], bucket: str, key: str) -> None:
        """Put a file into a bucket; a trigger on it starts its job."""
        self._run(self._catalogue.upload(Path(file), bucket, key))

    def close(self) -> None:
        """Close the connections. A client that is used again opens new ones."""
        self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client {self.url}>"

    def _run(self, call: Call[T]) -> T:
        return self._driver.run(call)

    def _iterate(self, call: Call[Any]) -> Generator[Any, None, Any]:
        return self._driver.iterate(call)

    def _value(self, finished: Finished) -> Any:
        return unpack(self._run(self._jobs.results(finished)), _maker(self, finished.job.id))


def _maker(client: Client, job_id: str) -> Any:
    return lambda info: Output(client, job_id, info)
