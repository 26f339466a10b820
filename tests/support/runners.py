"""Functions for tests of the runner: their source in, outcomes out."""

import itertools
import os
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidemill_workers.agent.outputs import collect
from tidemill_workers.agent.runners import Outcome, Runner, RunnerSpec, Task

_ALIVE = "RSDT"


@dataclass
class Seen:
    """What `run` told while the job ran."""

    log: list[tuple[str, str]] = field(default_factory=list)
    progress: list[tuple[float, float | None, str | None]] = field(default_factory=list)

    def lines(self, stream: str) -> list[str]:
        return [line for at, line in self.log if at == stream]


class RunnerBench:
    """A folder with a function in it, and the runners that were made of it; leave it as a context to end them all."""

    def __init__(self, folder: Path, python: Path | None = None) -> None:
        self.folder = folder
        self.python = python or Path(sys.executable)
        self.work_root = folder / "runners"
        self.code = folder / "code"
        self.code.mkdir(parents=True)
        self._numbers = itertools.count()
        self._runners: list[Runner] = []
        self.seen = Seen()

    def __enter__(self) -> "RunnerBench":
        return self

    def __exit__(self, *_: object) -> None:
        for runner in self._runners:
            runner.stop(0)

    def write(self, name: str, source: str) -> None:
        path = self.code / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
        path.chmod(0o755)

    def runner(self, source: str = "", handler: str | None = "handler:run", **options: Any) -> Runner:
        """A runner that is not started; `source` is the module `handler`."""
        if source:
            self.write("handler.py", source)
        command = options.pop("command", None)
        spec = RunnerSpec(
            function="fn",
            revision="r1",
            code_dir=self.code,
            handler=None if command else handler,
            command=command,
            python=options.pop("python", self.python),
            **options,
        )
        runner = Runner(spec, self.work_root)
        self._runners.append(runner)
        return runner

    def started(self, source: str = "", **options: Any) -> Runner:
        runner = self.runner(source, **options)
        runner.start()
        return runner

    def task(self, content: bytes = b"input", params: Mapping[str, Any] | None = None, timeout_s: float = 20) -> Task:
        number = next(self._numbers)
        file = self.folder / f"input{number}"
        file.write_bytes(content)
        job = {"id": f"job{number}", "function": "fn", "revision": "r1", "generation": 1, "attempt": 2, "owner": "ann"}
        return Task(
            job=job,
            file=file,
            name="a b.txt",
            bucket="inbox",
            key="deep/a b.txt",
            size=len(content),
            content_type="text/plain",
            metadata={"colour": "blue"},
            params=dict(params or {}),
            outputs=self.folder / f"outputs{number}",
            timeout_s=timeout_s,
        )

    def run(self, runner: Runner, **task: Any) -> Outcome:
        """One job; what it said is in `seen`."""
        self.seen = Seen()
        on_log = lambda stream, line: self.seen.log.append((stream, line))  # noqa: E731
        on_progress = lambda done, total, unit: self.seen.progress.append((done, total, unit))  # noqa: E731
        return runner.run(self.task(**task), on_log, on_progress)

    def outcome(self, source: str, **task: Any) -> Outcome:
        """One job of a fresh runner."""
        return self.run(self.started(source), **task)


def contents(outcome: Outcome) -> dict[str, bytes]:
    """The outputs of a job that succeeded."""
    assert outcome.kind == "succeeded", outcome
    found = {}
    for file in collect(outcome.outputs_dir).files:
        with file.open() as source:
            found[file.name] = source.read()
    return found


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] in _ALIVE


def processes_with(mark: str) -> list[int]:
    """The living processes that have `mark` in their command line or environment."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                text = Path(f"/proc/{entry}/cmdline").read_bytes() + Path(f"/proc/{entry}/environ").read_bytes()
            except OSError:
                continue
            if mark.encode() in text and is_alive(int(entry)):
                found.append(int(entry))
    return found
