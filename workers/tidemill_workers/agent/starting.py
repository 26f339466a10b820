"""From a deployed function to a started runner: code, environment, process; and what is said when that fails."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import structlog

from tidemill.errors import InvalidSpec, NotFound, ServiceUnavailable
from tidemill.ledger.api import Ledger
from tidemill.models import FunctionRecord, JobError
from tidemill_workers.agent.code import CodeCache
from tidemill_workers.agent.runners import Runner, RunnerSpec, RunnerStartFailed
from tidemill_workers.environments import EnvironmentBuilder, EnvironmentFailed

log = structlog.get_logger(__name__)


class StartFailed(Exception):
    """A runner could not start; the ledger knows.

    `permanent`: it will fail again, and placement ends the waiting jobs of the revision after the third such failure.
    Otherwise it may pass (no network, no memory), and counts as one of the job's attempts.
    """

    def __init__(self, fault: JobError, *, permanent: bool) -> None:
        super().__init__(fault.message)
        self.fault = fault
        self.permanent = permanent


class Starter:
    """Starts runners of one agent.

    Args:
        ledger: told of each failed start; after three permanent ones placement fails the revision's waiting jobs.
        code: where code archives are unpacked.
        environments: builder of the virtual environments.
        runners_dir: work folders of runners.
        env: environment variables of the pool; the function's own come on top.
        readable: more folders that functions may read.
    """

    def __init__(
        self,
        ledger: Ledger,
        code: CodeCache,
        environments: EnvironmentBuilder,
        runners_dir: Path,
        env: Mapping[str, str],
        readable: tuple[Path, ...],
    ) -> None:
        self._ledger = ledger
        self._code = code
        self._environments = environments
        self._runners_dir = runners_dir
        self._env = env
        self._readable = readable

    def start(self, function: FunctionRecord) -> Runner:
        """Give a started runner of this revision.

        Raises:
            StartFailed: when the code is gone or damaged, the environment cannot be built, or the handler not loaded.
            ServiceUnavailable: when the store or the ledger does not answer.
        """
        try:
            runner = self._start(function)
        except (RunnerStartFailed, EnvironmentFailed, InvalidSpec, NotFound) as error:
            fault = JobError(
                code="start_failed",
                message=str(error),
                traceback=getattr(error, "traceback", "") or "",
                log_tail=getattr(error, "log_tail", "") or "",
                hint="Mend the function or its requirements and deploy it again.",
            )
            log.warning("runner.start_failed", function=function.name, revision=function.revision, error=str(error))
            permanent = getattr(error, "permanent", True)  # code that is gone or damaged stays so
            self._ledger.start_failed(function.name, function.revision, fault, permanent)
            raise StartFailed(fault, permanent=permanent) from error
        try:
            self._ledger.start_succeeded(function.name, function.revision)
        except ServiceUnavailable:
            runner.stop()
            raise
        return runner

    def _start(self, function: FunctionRecord) -> Runner:
        folder = self._code.folder(function)
        spec = function.spec
        requirements = folder / spec.environment.requirements if spec.environment.requirements else None
        environment = self._environments.ensure(
            function.revision,
            requirements,
            spec.environment.no_deps,
            on_line=lambda line: log.debug("environment.line", function=function.name, line=line),
        )
        runner = Runner(
            RunnerSpec(
                function=function.name,
                revision=function.revision,
                code_dir=folder,
                handler=spec.handler,
                command=spec.command,
                python=environment.python,
                env={**self._env, **spec.env},
                readable=self._readable,
            ),
            self._runners_dir,
        )
        runner.start()
        log.info("runner.started", function=function.name, revision=function.revision, pid=runner.pid)
        return runner
