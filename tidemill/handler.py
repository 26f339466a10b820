"""What a function's own code sees: `Context`, `File`, and the two errors that decide about a retry.

Standard library only, on purpose: a runner loads this one file by its path into the function's own environment, where
nothing of Tidemill is installed, and offers it there as `tidemill`. It also has to run on interpreters older than
ours, so it uses no syntax newer than Python 3.9.

All of it can be built by hand, so that a handler is tested like any other callable:

    caption(File("cat.jpg"), Context(params={"top_k": 3}, output_dir=tmp_path))
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO

__all__ = ["Context", "File", "Gpu", "Job", "PermanentError", "TemporaryError"]


class PermanentError(Exception):
    """Raise it when another attempt cannot help: the job fails at once, without a retry."""


class TemporaryError(Exception):
    """Raise it when another attempt may help: the job is tried again, not before `delay` has passed.

    `delay` is in seconds (or a `timedelta`); without it the service chooses. A job that is tried again still counts
    towards the function's `limits.attempts`.
    """

    def __init__(self, *args: object, delay: float | timedelta | None = None) -> None:
        super().__init__(*args)
        self.delay = delay.total_seconds() if isinstance(delay, timedelta) else delay


@dataclass(frozen=True)
class File:
    """An input as a local, read-only file; or, as a result, a local file that becomes an output.

    `name` is the last part of the object's key, made safe as a file name; `key` is the object's key as the store has
    it. `size` is in bytes. Only `path` is needed: the rest is derived from it.
    """

    path: Path
    name: str = ""
    bucket: str = ""
    key: str = ""
    size: int = -1
    content_type: str = "application/octet-stream"
    metadata: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))
        if not self.name:
            object.__setattr__(self, "name", self.path.name)
        if self.size < 0 and self.path.is_file():
            object.__setattr__(self, "size", self.path.stat().st_size)

    def read(self) -> bytes:
        """The whole content."""
        return self.path.read_bytes()

    def open(self) -> BinaryIO:
        """The content as a binary stream; the caller closes it."""
        return self.path.open("rb")


@dataclass(frozen=True)
class Gpu:
    """The GPU that this runner may use; `memory_bytes` is its share, None when it has no limit."""

    uuid: str
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Job:
    """The job that runs now. `input` has `bucket`, `key` and `size` (bytes); `attempt` counts from 1, `generation`
    grows with each retry that a user asked for."""

    id: str
    function: str = ""
    revision: str = ""
    generation: int = 1
    attempt: int = 1
    owner: str = ""
    input: Mapping[str, Any] = field(default_factory=dict)


class Context:
    """What a handler may know and say while it runs.

    `params` are the job's parameters, `gpu` is a `Gpu` or None, `log` a logger whose lines go to the job's log.
    In `load(ctx)` there is no job yet: `job` and `output_dir` raise RuntimeError there, `params` is empty.
    """

    def __init__(
        self,
        params: Mapping[str, Any] | None = None,
        *,
        job: Job | None = None,
        gpu: Gpu | None = None,
        log: logging.Logger | None = None,
        output_dir: Path | str | None = None,
        report: Callable[[float, float | None, str | None], None] | None = None,
        is_cancelled: Callable[[], bool] | None = None,
    ) -> None:
        self.params: dict[str, Any] = dict(params or {})
        self.gpu = gpu
        self.log = log or logging.getLogger("tidemill.function")
        self._job = job
        self._output_dir = None if output_dir is None else Path(output_dir)
        self._report = report
        self._is_cancelled = is_cancelled

    @property
    def job(self) -> Job:
        """The job that runs now."""
        if self._job is None:
            raise RuntimeError("There is no job here: ctx.job is for the call with a file, not for load()")
        return self._job

    @property
    def output_dir(self) -> Path:
        """A folder of this job's own; each regular file in it or below becomes an output under its relative path."""
        if self._output_dir is None:
            raise RuntimeError("There is no job here: ctx.output_dir is for the call with a file, not for load()")
        return self._output_dir

    @property
    def cancelled(self) -> bool:
        """True once somebody asked to cancel the job: return soon, or the process is ended."""
        return self._is_cancelled is not None and self._is_cancelled()

    def progress(self, done: float, total: float | None = None, unit: str | None = None) -> None:
        """Says how far the job is. Cheap enough to call for every item: only some calls a second are passed on."""
        if self._report is not None:
            self._report(done, total, unit)
