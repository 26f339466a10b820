"""The keeper of processes behind `tidemill up`. It knows nothing of Tidemill.

**Services** are kept: started when what they need is ready, asked whether they are ready, started again with a growing
pause when they end by themselves. A service that does not become ready at the very first start fails the whole start:
the reason is then a mistake, not an accident. **Tasks** (agents) are started and stopped by name through the control
socket and never started again: one that ended is listed with its exit status, and whoever wanted it decides.

Everything ends in the reverse order: tasks first, with their grace, then each service when nothing needs it any more.
When the supervisor is killed, the kernel kills all its children (`spawn`).

All of it runs in one event loop on the main thread; only readiness checks go to a thread.
"""

import asyncio
import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tidemill.local.child import Child
from tidemill.local.errors import LocalError, StartFailed
from tidemill.local.logs import LogFile, prune
from tidemill.local.ready import Check, NotReady

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 10.0
_STEADY_S = 30.0
_SETTLED_S = 5.0  # a service that served for so long has done what it does at its first start
_ROTATE_S = 10.0
_LOOK_S = 3.0  # between two looks at a service that may run and be of no use
# What an agent gets to give its jobs back when the whole system ends.
_TASK_GRACE_S = 5.0
_ENDED_TASKS_KEPT = 100
_TASK_LOGS_KEPT = 50
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}")

State = Literal["waiting", "starting", "running", "restarting", "stopping", "exited"]


@dataclass(frozen=True)
class Service:
    """A process to keep. `needs` are names of services that must be ready before it starts.

    `env` is its whole environment; `once` are names in it that only first starts get: what it puts in place then, a
    person may change, and a later start must not undo that. `ready` decides when it is ready (None: as soon as it
    runs), `start_s` how long that may take. `stop_s` is its grace after SIGTERM. `before` runs before each start,
    `after` when it has ended for good. `broken` is given the end of its log every few seconds while it runs, and says
    why only a new start helps it, if so.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(repr=False)
    cwd: Path | None = None
    needs: tuple[str, ...] = ()
    ready: Check | None = None
    start_s: float = 30.0
    stop_s: float = 5.0
    before: Callable[[], None] | None = None
    after: Callable[[], None] | None = None
    broken: Callable[[str], str | None] | None = None
    once: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Event:
    """Something that a person may want to read. `status`: exit code, negative for a signal."""

    name: str
    what: Literal["started", "ready", "ended", "restarting", "unready", "stopped"]
    pid: int | None = None
    status: int | None = None
    pause_s: float | None = None
    detail: str = ""


@dataclass(frozen=True)
class ProcessInfo:
    """One line of `tidemill status`. `started_at` in seconds since 1970."""

    name: str
    kind: Literal["service", "task"]
    pid: int | None
    state: State
    started_at: float | None
    exit: int | None


class _Kept:
    """One service over its whole life."""

    def __init__(self, service: Service, log: LogFile, tell: Callable[[Event], None]) -> None:
        self.service = service
        self.log = log
        self.state: State = "waiting"
        self.child: Child | None = None
        self.ready = asyncio.Event()
        self._tell = tell
        self._stopping = asyncio.Event()
        self._first = True
        self._settled = False

    async def run(self, needs: Sequence["_Kept"]) -> None:
        """Keeps the service until `stop`. Raises `StartFailed` when the first start fails."""
        for other in needs:
            await other.ready.wait()
        pause_s = _FIRST_PAUSE_S
        while not self._stopping.is_set():
            child = self._start()
            served = await self._becomes_ready(child)
            if served:
                self.state = "running"
                self._tell(Event(self.service.name, "ready", child.pid))
                self._first = False
                self.ready.set()
                await self._ends_or_breaks(child)
            elif not self._stopping.is_set():
                await child.end(self.service.stop_s)
            status = await child.wait()
            if self._stopping.is_set():
                return
            self._settled = self._settled or (served and child.uptime_s >= _SETTLED_S)
            if child.uptime_s >= _STEADY_S:
                pause_s = _FIRST_PAUSE_S
            self.state = "restarting"
            self._tell(Event(self.service.name, "restarting", child.pid, status, pause_s))
            await self._pause(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    async def stop(self) -> None:
        """Ends it, and it stays ended."""
        self._stopping.set()
        child = self.child
        if child is not None and child.alive:
            self.state = "stopping"
            status = await child.end(self.service.stop_s)
            self._tell(Event(self.service.name, "stopped", child.pid, status))
        self.state = "exited"
        if self.service.after is not None:
            self.service.after()

    def kill(self) -> None:
        if self.child is not None:
            self.child.kill()

    def info(self) -> ProcessInfo:
        child = self.child
        if child is None:
            return ProcessInfo(self.service.name, "service", None, self.state, None, None)
        pid = child.pid if child.alive else None
        return ProcessInfo(self.service.name, "service", pid, self.state, child.started_at, child.status)

    def _start(self) -> Child:
        service = self.service
        self.state = "starting"
        if service.before is not None:
            service.before()
        env = {name: value for name, value in service.env.items() if not self._settled or name not in service.once}
        self.child = Child.start(service.argv, env=env, cwd=service.cwd, log=self.log)
        self._tell(Event(service.name, "started", self.child.pid))
        return self.child

    async def _becomes_ready(self, child: Child) -> bool:
        """True when it is ready; False when it ended, is not ready in time, or must stop."""
        check, wait_s = self.service.ready, 0.02
        if check is None:
            return child.alive
        reason = "it was not asked yet"
        while child.alive and child.uptime_s < self.service.start_s:
            try:
                await asyncio.to_thread(check)
            except NotReady as error:
                reason = str(error)
            else:
                # Somebody else may answer in its place; that one does not count.
                if child.alive:
                    return True
            await child.ends_within(wait_s)
            wait_s = min(wait_s * 1.3, 0.2)
        if self._stopping.is_set():
            return False
        if not child.alive:
            reason = f"it ended with {describe(child.status)}"
        else:
            reason = f"not ready after {self.service.start_s:g} s: {reason}"
        if self._first:
            child.kill()
            await child.wait()
            raise StartFailed(self.service.name, reason, self.log.tail(since=child.log_mark))
        self._tell(Event(self.service.name, "unready", child.pid, child.status, detail=reason))
        return False

    async def _ends_or_breaks(self, child: Child) -> None:
        """Returns when it has ended; one that only a new start can help is made to end."""
        if (broken := self.service.broken) is None:
            return
        while not await child.ends_within(_LOOK_S):
            reason = broken(self.log.tail(since=child.log_mark))
            if reason is not None and not self._stopping.is_set():
                self._tell(Event(self.service.name, "unready", child.pid, detail=reason))
                await child.end(self.service.stop_s)

    async def _pause(self, pause_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), pause_s)


@dataclass
class _Task:
    name: str
    child: Child
    log: LogFile
    stopping: asyncio.Task[int] | None = None
    watching: asyncio.Task[None] | None = None

    def info(self) -> ProcessInfo:
        child = self.child
        state: State = "exited" if not child.alive else "stopping" if self.stopping is not None else "running"
        return ProcessInfo(self.name, "task", child.pid, state, child.started_at, child.status)


class Supervisor:
    """Keeps services and runs tasks. `logs` gets a file for each; `tell` gets each `Event` as it happens."""

    def __init__(self, logs: Path, tell: Callable[[Event], None]) -> None:
        self._logs = logs
        self._tell = tell
        self._kept: dict[str, _Kept] = {}
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._tasks: dict[str, _Task] = {}
        self._rotating: asyncio.Task[None] | None = None
        self._ending = False

    async def start(self, services: Sequence[Service]) -> None:
        """Starts all, and returns when all are ready. Raises `StartFailed`; what runs by then keeps running."""
        for service in services:
            self._kept[service.name] = _Kept(service, LogFile(self._logs / f"{service.name}.log"), self._tell)
        for name, kept in self._kept.items():
            needs = [self._kept[other] for other in kept.service.needs]
            self._runs[name] = asyncio.create_task(kept.run(needs), name=name)
        self._rotating = asyncio.create_task(self._rotate())
        everything_ready = asyncio.create_task(self._all_ready())
        try:
            await asyncio.wait({everything_ready, *self._runs.values()}, return_when=asyncio.FIRST_COMPLETED)
            if not everything_ready.done():
                self._raise_if_failed()
                raise LocalError("stopped before everything was ready")
        finally:
            everything_ready.cancel()

    async def _all_ready(self) -> None:
        for kept in self._kept.values():
            await kept.ready.wait()

    async def watch(self) -> None:
        """Returns never, save with the error of a keeper that failed: that is a defect of ours, not of a service."""
        await asyncio.wait(self._runs.values(), return_when=asyncio.FIRST_EXCEPTION)
        self._raise_if_failed()

    async def stop(self) -> None:
        """Ends all tasks, then all services in reverse order of their needs. May be called twice."""
        self._ending = True
        await asyncio.gather(*(task.child.end(_TASK_GRACE_S) for task in self._tasks.values()))
        stopped = {name: asyncio.Event() for name in self._kept}

        async def stop_one(name: str) -> None:
            for other in self._kept.values():
                if name in other.service.needs:
                    await stopped[other.service.name].wait()
            await self._kept[name].stop()
            stopped[name].set()

        await asyncio.gather(*(stop_one(name) for name in self._kept))
        if self._rotating is not None:
            self._rotating.cancel()
        runs = [*self._runs.values(), *([self._rotating] if self._rotating is not None else [])]
        for run in self._runs.values():
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)

    def kill(self) -> None:
        """SIGKILL for everything, for somebody who is in a hurry."""
        for task in self._tasks.values():
            task.child.kill()
        for kept in self._kept.values():
            kept.kill()

    def start_task(self, name: str, argv: Sequence[str], env: Mapping[str, str]) -> ProcessInfo:
        """Starts a task, unless one of this name runs. Raises `LocalError` for a bad name, or when all is ending."""
        if not _NAME.fullmatch(name) or name in self._kept:
            raise LocalError(f"{name!r} cannot be the name of a task", hint="Use letters, digits and . _ @ -")
        if not argv:
            raise LocalError("a task needs a command")
        if self._ending:
            raise LocalError("the system is going down and starts nothing more")
        task = self._tasks.get(name)
        if task is None or not task.child.alive:
            folder = self._logs / "tasks"
            log = LogFile(folder / f"{name}.log")
            child = Child.start(argv, env=env, cwd=None, log=log)
            prune(folder, _TASK_LOGS_KEPT)
            self._tasks.pop(name, None)
            task = self._tasks[name] = _Task(name, child, log)
            task.watching = asyncio.create_task(self._watch_task(task))
            self._tell(Event(name, "started", child.pid))
            self._forget_old_tasks()
        return task.info()

    def stop_task(self, name: str, grace_s: float) -> ProcessInfo | None:
        """Asks a task to end, and makes it end after `grace_s`; returns at once. None: there is no such task."""
        task = self._tasks.get(name)
        if task is None:
            return None
        if task.child.alive and task.stopping is None:
            task.stopping = asyncio.create_task(task.child.end(grace_s))
        return task.info()

    def tasks(self) -> list[ProcessInfo]:
        """All tasks that run, and the last hundred that ended, oldest first."""
        return [task.info() for task in self._tasks.values()]

    def services(self) -> list[ProcessInfo]:
        return [kept.info() for kept in self._kept.values()]

    async def _watch_task(self, task: _Task) -> None:
        status = await task.child.wait()
        self._tell(Event(task.name, "ended", task.child.pid, status))

    def _forget_old_tasks(self) -> None:
        ended = [name for name, task in self._tasks.items() if not task.child.alive]
        for name in ended[:-_ENDED_TASKS_KEPT]:
            del self._tasks[name]

    def _raise_if_failed(self) -> None:
        for run in self._runs.values():
            if run.done() and not run.cancelled() and (error := run.exception()) is not None:
                raise error

    async def _rotate(self) -> None:
        while True:
            await asyncio.sleep(_ROTATE_S)
            for log in [kept.log for kept in self._kept.values()] + [task.log for task in self._tasks.values()]:
                log.rotate()


def describe(status: int | None) -> str:
    """`status 3` or `signal 9`, for a sentence."""
    if status is None:
        return "no status"
    return f"signal {-status}" if status < 0 else f"status {status}"
