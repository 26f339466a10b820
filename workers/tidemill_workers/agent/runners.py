"""Runners as the agent uses them: start one, give it jobs one after the other, cancel, stop.

    runner = Runner(spec, work_root)
    runner.start()                                  # RunnerStartFailed: the code cannot be loaded, or not now
    outcome = runner.run(task, on_log, on_progress) # never raises for what the function does
    runner.stop()

A runner keeps its state (the model) between jobs. After `timeout` and `crashed`, and after a `cancelled` that the
function did not heed, it is dead (`alive` is False) and its owner starts another. `run` and `start` are called by one
thread at a time; `cancel` and `stop` by any. Callbacks run on the thread that called `run`; when they are slow,
nothing but the delivery of lines waits for them.

What a function leaves running when its job ends normally (a daemon, a thread) belongs to the runner: it lives on
beside the next jobs, and ends at the latest with the runner, however that ends; also when the agent is killed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import structlog

import tidemill
import tidemill_workers.runner
from tidemill.models import JobError
from tidemill_workers.runner.failures import CODES

from . import outputs, runner_files
from .runner_log import JobLog
from .runner_process import End, RunnerProcess

Kind = Literal["succeeded", "failed", "permanent", "temporary", "timeout", "crashed", "cancelled"]
OnLog = Callable[[str, str], None]  # stream (stdout, stderr, log, tidemill), line
OnProgress = Callable[[float, float | None, str | None], None]

_log = structlog.get_logger(__name__)
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MESSAGE_LIMIT, _TRACEBACK_LIMIT, _UNIT_LIMIT = 4096, 32768, 64
_NUMBER_LIMIT = 2**53
_DELAY_LIMIT_S = 30 * 86400.0
_HINTS = {
    "timeout": "Give it more time with limits.timeout in function.yaml, or call ctx.progress to see where it stands.",
    "result_not_serialisable": "Convert it first: float(x), array.tolist(), or write a file into ctx.output_dir.",
    "function_exited": "Return from the handler instead of calling sys.exit().",
    "process_exited": "Return from the handler instead of ending the process.",
    "command_failed": "The log shows what it printed; exit code 75 asks for another attempt.",
}


@dataclass(frozen=True)
class RunnerSpec:
    """What a runner is. Exactly one of `handler` (`module:object`) and `command` is set; `code_dir` is the function's
    folder.

    `env` is the function's and the pool's; `readable` are more folders that the function may read (a model cache,
    say). `gpu`: uuid and memory_bytes.
    """

    function: str
    revision: str
    code_dir: Path
    handler: str | None
    command: tuple[str, ...] | None
    python: Path
    env: Mapping[str, str] = field(default_factory=dict)
    load_timeout_s: float = 300
    readable: tuple[Path, ...] = ()
    gpu: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Task:
    """One job. `job` has id, function, revision, generation, attempt, owner; `file` is the downloaded input, `size`
    in bytes.

    `outputs` is where the agent wants the folder of outputs: nothing lies there yet, best on the file system of the
    work root.
    """

    job: Mapping[str, Any]
    file: Path
    name: str
    bucket: str
    key: str
    size: int
    content_type: str
    metadata: Mapping[str, str]
    params: Mapping[str, Any]
    outputs: Path
    timeout_s: float


@dataclass(frozen=True)
class Outcome:
    """How a job went. `outputs_dir` is a folder only when `kind` is succeeded; read it with `outputs.collect`.
    `delay_s` is what the function asked for with TemporaryError; `seconds` is the run time as the agent saw it."""

    kind: Kind
    error: JobError | None
    delay_s: float | None
    seconds: float
    outputs_dir: Path


class RunnerStartFailed(Exception):
    """The function could not be loaded. `permanent`: starting it again will not help, as far as one can tell."""

    def __init__(self, code: str, message: str, *, permanent: bool, traceback: str = "", log_tail: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.permanent = permanent
        self.traceback = traceback
        self.log_tail = log_tail


@dataclass(frozen=True)
class Isolation:
    """What shuts a runner in. `missing` says in sentences what does not.

    `agent_hidden` and `files_hidden` are results of a real attempt (`describe_isolation`), None where none was made:
    the agent's environment and descriptors; a file of the agent's outside the runner's folders.
    """

    user: bool
    uid: int
    landlock_abi: int
    no_new_privs: bool
    capabilities: tuple[str, ...]
    missing: tuple[str, ...]
    agent_hidden: bool | None = None
    files_hidden: bool | None = None


class Runner:
    """One child process for one function. `isolation` and `load_log` are known after `start`."""

    def __init__(self, spec: RunnerSpec, work_root: Path) -> None:
        if (spec.handler is None) == (spec.command is None):
            raise ValueError("A runner needs a handler or a command, and not both")
        self.spec = spec
        self.isolation: Isolation | None = None
        self.load_log = ""
        self.idle_since = time.monotonic()
        self._work_root = work_root
        self._changed = threading.Condition()
        self._process: RunnerProcess | None = None
        self._work: Path | None = None
        self._uid: int | None = None
        self._number = 0
        self._busy = False
        self._cancelled = False
        self._reply: dict[str, Any] | None = None
        self._end: End | None = None
        self._progress: tuple[float, float | None, str | None] | None = None
        self._log = JobLog()

    @property
    def alive(self) -> bool:
        """Whether it can take a job, now or after the one that it has."""
        return self._process is not None and self._end is None

    @property
    def pid(self) -> int | None:
        """The function's process, None before it started."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Starts the process and loads the function. Raises RunnerStartFailed; the runner is gone then."""
        spec = self.spec
        try:
            self._work = work = runner_files.make_work_dir(self._work_root, spec.function)
            self._uid = runner_files.take_uid()
            self._process = RunnerProcess(work / "lib", self._on_message, self._on_output, self._on_end)
            self._process.limit(time.monotonic() + spec.load_timeout_s, "load_timeout")
            self._process.send({"type": "launch", **self._launch_order(work)})
            code = str(spec.code_dir.resolve())
            load = {"handler": spec.handler, "command": list(spec.command or ()), "code": code}
            self._process.send({"type": "load", **load, "gpu": None if spec.gpu is None else dict(spec.gpu)})
            with self._changed:
                self._changed.wait_for(lambda: self._reply is not None or self._end is not None)
                reply, end, self._reply = self._reply, self._end, None
                self._log.finish()
                self.load_log = self._log.excerpt()
                self._log = JobLog()
        except OSError as error:
            self.stop(0)
            raise RunnerStartFailed(
                "runner_start_failed", f"The runner could not start: {error}", permanent=False
            ) from error
        except BaseException:
            self.stop(0)
            raise
        if reply is None or reply["type"] != "ready":
            self.stop(0)
            raise self._start_failure(reply, end)
        self.idle_since = time.monotonic()

    def run(self, task: Task, on_log: OnLog, on_progress: OnProgress) -> Outcome:
        """Runs one job to its end. Raises RuntimeError when the runner is dead or busy. OSError (the
        input cannot be placed) and what the callbacks raise come out too; the runner is ended then.
        """
        with self._changed:
            if self._process is None or self._end is not None or self._busy:
                raise RuntimeError("The runner is dead, or busy with another job")
            self._busy, self._cancelled, self._reply, self._progress = True, False, None, None
            self._log = JobLog()
            self._number += 1
        process, work = self._process, self._work
        assert work is not None
        given = work / "in"
        produced = work / "out" / str(self._number)
        began = time.monotonic()
        try:
            gid = self._uid if self.isolation is not None and self.isolation.user else None
            path = runner_files.place_input(task.file, given, task.name, gid)
            process.limit(began + task.timeout_s, "timeout")
            process.send(self._request(task, path, produced))
            reply, end = self._deliver(on_log, on_progress)
            seconds = time.monotonic() - began
            return self._outcome(task, reply, end, seconds, produced)
        except BaseException:
            process.limit(0.0, "abandoned")
            raise
        finally:
            if not runner_files.remove_inputs(given):
                _log.warning("runner.input_left", path=str(given))
                process.limit(0.0, "input_left")  # no other job may find it
            with self._changed:
                self._busy = False
                alive = self._end is None
            if alive and os.path.lexists(produced):
                runner_files.remove_tree(produced)
            self.idle_since = time.monotonic()

    def cancel(self, grace_s: float = 1.0) -> bool:
        """Asks the running job to end, and ends the whole runner when it has not after `grace_s`. Does not wait;
        `run` returns `cancelled`. False when no job runs."""
        with self._changed:
            if not self._busy or self._process is None or self._reply is not None or self._end is not None:
                return False
            self._cancelled = True
            self._process.limit(time.monotonic() + grace_s, "cancelled")
            process, number = self._process, self._number
        process.send({"type": "cancel", "number": number})
        return True

    def stop(self, grace_s: float = 5.0) -> None:
        """Lets the current job end and the function's interpreter exit, at most for `grace_s`; then ends everything.
        Waits for it, and removes the runner's folder. May be called twice."""
        process = self._process
        if process is not None and self._end is None:
            process.limit(time.monotonic() + grace_s, "stopped")
            if grace_s > 0:
                process.send({"type": "stop"})
            with self._changed:
                self._changed.wait_for(lambda: self._end is not None)
                self._changed.wait_for(lambda: not self._busy, timeout=1.0)
        work, self._work = self._work, None
        if work is not None:
            if not runner_files.remove_tree(work):
                _log.warning("runner.folder_left", path=str(work))
            runner_files.return_uid(self._uid)

    # -- called on the process' thread -------------------------------------------------------------------------------

    def _on_message(self, message: dict[str, Any]) -> None:
        with self._changed:
            kind = message["type"]
            if kind == "isolation" and self.isolation is None:
                self.isolation = _isolation(message)
            elif kind == "log":
                line = message.get("line")
                self._log.line("log", line if isinstance(line, str) else "")
            elif kind == "progress":
                self._progress = _progress(message) or self._progress
            elif kind in ("ready", "result", "error") and self._reply is None:
                self._reply = message
                if self._process is not None:
                    self._process.unlimit()
            self._changed.notify_all()

    def _on_output(self, stream: str, chunk: bytes) -> None:
        with self._changed:
            self._log.feed(stream, chunk)
            self._changed.notify_all()

    def _on_end(self, end: End) -> None:
        with self._changed:
            self._end = end
            self._changed.notify_all()

    # -- parts of start and run --------------------------------------------------------------------------------------

    def _environment(self, work: Path) -> dict[str, str]:
        spec = self.spec
        given = {name: value for name, value in spec.env.items() if not name.startswith("TIDEMILL_")}
        env = {"LANG": "C.UTF-8", "PATH": f"{spec.python.parent}:{_PATH}"}
        if spec.gpu is not None:
            env["CUDA_VISIBLE_DEVICES"] = str(spec.gpu.get("uuid", ""))
        return {
            **env,
            **given,
            "HOME": str(work / "home"),
            "TMPDIR": str(work / "tmp"),
            "TIDEMILL_FUNCTION": spec.function,
            "TIDEMILL_REVISION": spec.revision,
            "TIDEMILL_VERSION": tidemill.__version__,
        }

    def _launch_order(self, work: Path) -> dict[str, Any]:
        spec = self.spec
        code = spec.code_dir.resolve()
        roots = runner_files.readable_roots(spec.python, self._work_root)
        readable = [*roots, code, work / "lib", work / "in", *spec.readable]
        reach = [spec.python, *roots, code, *code.iterdir(), work / "lib", work / "home"]
        policy = {
            "read": [str(path) for path in readable],
            "write": [str(work / name) for name in ("home", "tmp", "out")],
            "work": str(work),
            "python": str(spec.python),
            "reach": [str(path) for path in reach],
            "uid": self._uid,
        }
        return {"policy": policy, "python": str(spec.python), "env": self._environment(work), "cwd": str(code)}

    def _request(self, task: Task, path: Path, produced: Path) -> dict[str, Any]:
        job = {name: task.job[name] for name in ("id", "function", "revision", "generation", "attempt", "owner")}
        file = {
            "path": str(path),
            "name": path.name,
            "bucket": task.bucket,
            "key": task.key,
            "size": task.size,
            "content_type": task.content_type,
            "metadata": dict(task.metadata),
        }
        code = str(self.spec.code_dir.resolve())
        request = {"number": self._number, "code": code, "job": job, "file": file, "params": dict(task.params)}
        return {"type": "run", **request, "output": str(produced)}

    def _deliver(self, on_log: OnLog, on_progress: OnProgress) -> tuple[dict[str, Any] | None, End | None]:
        """Hands lines and progress on until the reply or the end is there."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._log.pending or self._progress is not None or self._done())
                done = self._done()
                lines = self._log.finish() if done else self._log.take()
                progress, self._progress = self._progress, None
                reply, end = self._reply, self._end
            for stream, line in lines:
                on_log(stream, line)
            if progress is not None:
                on_progress(*progress)
            if done:
                return reply, end

    def _done(self) -> bool:
        return self._reply is not None or self._end is not None

    def _outcome(
        self, task: Task, reply: dict[str, Any] | None, end: End | None, seconds: float, produced: Path
    ) -> Outcome:
        target = task.outputs
        if self._cancelled and (end is None or end.reason in (None, "cancelled")):
            error = self._failure("cancelled", "The job was cancelled")
            return Outcome("cancelled", error, None, seconds, target)
        if reply is not None and reply["type"] == "result":
            problem = runner_files.move_outputs(produced, target)
            if problem is None:
                return Outcome("succeeded", None, None, seconds, target)
            return Outcome("failed", self._failure("output_not_allowed", problem), None, seconds, target)
        if reply is not None:
            kind = reply.get("kind")
            kind = cast(Kind, kind) if kind in ("failed", "permanent", "temporary") else "failed"
            delay_s = _number(reply.get("delay_s")) if kind == "temporary" else None
            delay_s = None if delay_s is None else min(_DELAY_LIMIT_S, max(0.0, delay_s))
            return Outcome(kind, self._failure_of(reply), delay_s, seconds, target)
        assert end is not None
        if end.reason == "timeout":
            error = self._failure("timeout", f"The function ran longer than its limit of {task.timeout_s:g} s")
            return Outcome("timeout", error, None, seconds, target)
        return Outcome("crashed", self._failure(*_how_it_ended(end)), None, seconds, target)

    def _failure(self, code: str, message: str, traceback: str = "") -> JobError:
        with self._changed:
            tail = self._log.excerpt()
        return JobError(code=code, message=message, traceback=traceback, log_tail=tail, hint=_HINTS.get(code))

    def _failure_of(self, reply: Mapping[str, Any]) -> JobError:
        code, message = reply.get("code"), _text(reply, "message", _MESSAGE_LIMIT)
        known = isinstance(code, str) and code in CODES
        return self._failure(
            str(code) if known else "function_error", message, _text(reply, "traceback", _TRACEBACK_LIMIT)
        )

    def _start_failure(self, reply: Mapping[str, Any] | None, end: End | None) -> RunnerStartFailed:
        if reply is not None:
            code, message = _text(reply, "code", 64) or "load_failed", _text(reply, "message", _MESSAGE_LIMIT)
            permanent = reply.get("kind") == "permanent"
            traceback = _text(reply, "traceback", _TRACEBACK_LIMIT)
            return RunnerStartFailed(code, message, permanent=permanent, traceback=traceback, log_tail=self.load_log)
        assert end is not None
        if end.reason == "load_timeout":
            message = f"The function was not loaded within {self.spec.load_timeout_s:g} s"
            return RunnerStartFailed("load_timeout", message, permanent=False, log_tail=self.load_log)
        code, message = _how_it_ended(end)
        # SIGKILL is mostly the kernel short of memory, which may pass; ending by itself will happen again.
        killed = end.status is None or os.waitstatus_to_exitcode(end.status) == -signal.SIGKILL
        permanent = end.reason is None and not killed
        return RunnerStartFailed(code, f"While loading: {message}", permanent=permanent, log_tail=self.load_log)


def describe_isolation(python: Path, work_root: Path | None = None) -> Isolation:
    """Starts a runner with that interpreter, lets it look for what it must not find, and says what held.

    `work_root` is where real runners will live: where it lies decides whether another user can reach it.
    """
    with tempfile.TemporaryDirectory(prefix="tidemill-probe-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        code, secret = folder / "code", folder / "secret"
        code.mkdir()
        code.chmod(0o755)
        shutil.copyfile(Path(tidemill_workers.runner.__path__[0]) / "probe.py", code / "probe_isolation.py")
        (code / "probe_isolation.py").chmod(0o644)
        secret.write_text("secret")
        secret.chmod(0o600)
        spec = RunnerSpec("probe", "probe", code, "probe_isolation:probe", None, python, load_timeout_s=30)
        runner = Runner(spec, folder / "work" if work_root is None else work_root)
        runner.start()
        try:
            return _probe(runner, secret, folder)
        finally:
            runner.stop(0)


def _probe(runner: Runner, secret: Path, folder: Path) -> Isolation:
    job = {"id": "probe", "function": "probe", "revision": "probe", "generation": 1, "attempt": 1, "owner": ""}
    source, outputs_dir = folder / "nothing", folder / "outputs"
    source.write_bytes(b"")
    params = {"agent_pid": os.getpid(), "secret": str(secret)}
    task = Task(job, source, "nothing", "", "nothing", 0, "application/octet-stream", {}, params, outputs_dir, 30)
    outcome = runner.run(task, lambda _stream, _line: None, lambda _done, _total, _unit: None)
    isolation = runner.isolation
    if outcome.error is not None or isolation is None:
        raise RuntimeError(f"The probe failed: {outcome.error}")
    with outputs.collect(outcome.outputs_dir).files[0].open() as answer:
        found = json.loads(answer.read())
    agent_hidden = not (found["agent_environment"] or found["agent_descriptors"])
    return dataclasses.replace(isolation, agent_hidden=agent_hidden, files_hidden=not found["agent_files"])


def _isolation(message: Mapping[str, Any]) -> Isolation:
    return Isolation(
        user=bool(message.get("user")),
        uid=int(message.get("uid", -1)),
        landlock_abi=int(message.get("landlock_abi", 0)),
        no_new_privs=bool(message.get("no_new_privs")),
        capabilities=tuple(message.get("capabilities", ())),
        missing=tuple(message.get("missing", ())),
    )


def _progress(message: Mapping[str, Any]) -> tuple[float, float | None, str | None] | None:
    """None when it does not say how much is done."""
    done = _number(message.get("done"))
    if done is None:
        return None
    return done, _number(message.get("total")), _text(message, "unit", _UNIT_LIMIT) or None


def _number(value: object) -> float | None:
    """A number out of the function's process; None for what is none: not finite, or beyond what counts things."""
    return float(value) if isinstance(value, int | float) and -_NUMBER_LIMIT <= value <= _NUMBER_LIMIT else None


def _text(message: Mapping[str, Any], name: str, limit: int) -> str:
    """A string out of the function's process: bounded, the end kept, without lone surrogates."""
    value = message.get(name)
    return value[-limit:].encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _how_it_ended(end: End) -> tuple[str, str]:
    if end.reason == "protocol":
        return "protocol_violated", "The function wrote into the runner's own pipe"
    if end.reason is not None:
        return "runner_stopped", "The runner was stopped before the function had finished"
    if end.status is None:
        return "process_killed", "The function's process was killed"
    code = os.waitstatus_to_exitcode(end.status)
    if code >= 0:
        return "process_exited", f"The function ended its process with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    hint = "; most often that is the system, short of memory" if -code == signal.SIGKILL else ""
    return "process_killed", f"The function's process was ended by {name}{hint}"
