"""The errors of Tidemill: one tree, each class with a stable code, a sentence, and a hint that says what to do.

    TidemillError
    ├── InvalidSpec            a function, pool or call that cannot be accepted
    ├── NotFound               no such function, job, pool, bucket or object
    ├── NotAllowed             a missing or wrong token, or a bucket of somebody else
    ├── Conflict               the same name or key, but another content
    ├── QuotaExceeded          a limit of the owner was reached
    ├── NoCapacity             no pool can ever run this job
    ├── ServiceUnavailable     a server does not answer, or takes no new work now
    │   ├── StoreUnavailable   the S3 store
    │   └── LedgerUnavailable  Redis, or a ledger that has no epoch yet
    ├── PreconditionFailed     a conditional write found another object than it expected
    ├── FunctionFailed         the function raised, crashed, or ran out of time
    ├── JobCancelled           somebody cancelled the job, or its input changed
    └── WaitTimeout            a wait ended before the job did (also a TimeoutError)

The code travels over HTTP in the problem document (RFC 9457); a client rebuilds the class from it with `error_for`.
A job that ends badly has a code of its own in its `error`: `JOB_HINTS` names them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class TidemillError(Exception):
    """Base of all errors of Tidemill.

    `code` is stable and may be compared; `str(error)` is for people; `hint` says what to do next.
    """

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    default_hint: ClassVar[str] = "Look into the log of the gateway, and report this if it says nothing."

    def __init__(self, message: str, *, hint: str | None = None, code: str | None = None, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or self.default_hint
        self.error_code = code or self.code
        self.details = details
        self.add_note(f"Hint: {self.hint}")  # a traceback prints it below the message

    def __str__(self) -> str:
        return self.message


class InvalidSpec(TidemillError):
    code = "invalid_spec"
    status = 422
    default_hint = "Correct the named place and try again."


class NotFound(TidemillError):
    code = "not_found"
    status = 404
    default_hint = "List what exists: tidemill function list, tidemill job list, tidemill pool list."


class NotAllowed(TidemillError):
    code = "not_allowed"
    status = 403
    default_hint = "Set TIDEMILL_TOKEN, or run the command as the user who ran `tidemill up`; `tidemill env` prints it."


class Conflict(TidemillError):
    code = "conflict"
    status = 409
    default_hint = "Use another name or key, or look at what is there under this one."


class QuotaExceeded(TidemillError):
    code = "quota_exceeded"
    status = 429
    default_hint = "Wait until running work has ended, or ask the operator for a higher limit."


class NoCapacity(TidemillError):
    code = "no_capacity"
    status = 422
    default_hint = "Compare the function's resources and placement with `tidemill pool list`."


class ServiceUnavailable(TidemillError):
    code = "service_unavailable"
    status = 503
    default_hint = "Run `tidemill doctor`, which asks every server."


class StoreUnavailable(ServiceUnavailable):
    code = "store_unavailable"
    default_hint = "Check the S3 store and TIDEMILL_STORE__ENDPOINT; `tidemill doctor` says what does not answer."


class LedgerUnavailable(ServiceUnavailable):
    code = "ledger_unavailable"
    default_hint = "Check Redis and TIDEMILL_REDIS__URL; `tidemill doctor` says what does not answer."


class PreconditionFailed(TidemillError):
    code = "precondition_failed"
    status = 412
    default_hint = "Read the object again; another writer was first."


class FunctionFailed(TidemillError):
    """The function failed. `traceback` is the remote one, `log_tail` the end of what it printed."""

    code = "function_failed"
    status = 422
    default_hint = "Read the traceback and `tidemill job logs ID`, mend the function, then `tidemill job retry ID`."

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        code: str | None = None,
        traceback: str = "",
        log_tail: str = "",
        **details: Any,
    ) -> None:
        super().__init__(message, hint=hint, code=code, **details)
        self.traceback = traceback
        self.log_tail = log_tail

    def __str__(self) -> str:
        parts = [self.message]
        if self.traceback:
            parts.append("Remote traceback:\n" + self.traceback.rstrip())
        if self.log_tail:
            parts.append("End of its log:\n" + self.log_tail.rstrip())
        return "\n\n".join(parts)


class JobCancelled(TidemillError):
    code = "cancelled"
    status = 409
    default_hint = "`tidemill job retry ID` runs it again."


class WaitTimeout(TidemillError, TimeoutError):
    code = "wait_timeout"
    status = 504
    default_hint = "The job goes on; `tidemill job wait ID` waits for it again."


_MEND = "mend the function, deploy it, then `tidemill job retry ID`."

# What a job may end with other than success, and what to do then. A hint that the job itself brings comes first.
JOB_HINTS: Mapping[str, str] = {
    "function_error": f"Read the traceback and `tidemill job logs ID`, {_MEND}",
    "permanent_error": "The function refuses this input: correct the input, or the function, then "
    "`tidemill job retry ID`.",
    "temporary_error": "Its attempts are used up: `tidemill job retry ID` once the cause is over, or raise "
    "limits.attempts in function.yaml.",
    "timeout": "Raise limits.timeout in function.yaml, deploy it, then `tidemill job retry ID`.",
    "process_killed": "Where memory ran short, raise resources.memory in function.yaml and deploy it; then "
    "`tidemill job retry ID`. `tidemill job logs ID` has its last lines.",
    "process_exited": f"Return from the handler instead of ending the process: {_MEND}",
    "function_exited": f"Return from the handler instead of calling sys.exit(): {_MEND}",
    "command_failed": f"Read in `tidemill job logs ID` what it printed, {_MEND}",
    "command_killed": "Where memory ran short, raise resources.memory in function.yaml and deploy it; then "
    "`tidemill job retry ID`.",
    "command_not_found": "Correct `command` in function.yaml, or install the program where the agents run; then "
    "`tidemill job retry ID`.",
    "result_not_serialisable": f"Return what JSON can say, or write a file into ctx.output_dir: {_MEND}",
    "output_name_invalid": f"Name the output like a/b.txt: {_MEND}",
    "output_exists": f"Give each output a name of its own: {_MEND}",
    "output_missing": f"Write the file before the handler returns it: {_MEND}",
    "output_not_a_file": f"Write files into ctx.output_dir instead of returning a folder: {_MEND}",
    "output_not_allowed": f"Write plain files into ctx.output_dir: {_MEND}",
    "output_refused": "Look at the names, the number and the bucket of its results; then `tidemill job retry ID`.",
    "output_conflict": "Move the object away that lies there, or set output.on_conflict in function.yaml; then "
    "`tidemill job retry ID`.",
    "output_lost": "`tidemill job retry ID` runs it again.",
    "protocol_violated": f"Write to no file descriptor that the function has not opened itself: {_MEND}",
    "runner_stopped": "`tidemill job retry ID` runs it again; the log of the agent says why it was stopped.",
    "start_failed": f"Read the message and the traceback, {_MEND}",
    "attempts_exhausted": "The history names the agents that were lost; see whether the function uses up the memory, "
    "then `tidemill job retry ID`.",
    "no_capacity": NoCapacity.default_hint,
    "input_gone": "Upload the input again: that is a new job.",
    "input_too_large": "Split the input, or give the agents a work folder on a larger disk (TIDEMILL_AGENT__WORK_DIR); "
    "then `tidemill job retry ID`.",
    "superseded": "Nothing is to be done: what lies under this key now is a job of its own.",
    "function_deleted": "Deploy the function again, then `tidemill job retry ID`.",
    "cancelled": JobCancelled.default_hint,
    "internal": "`tidemill job retry ID` tries again; report this with the log of the agent.",
}


def _tree(root: type[TidemillError]) -> dict[str, type[TidemillError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found.update(_tree(child))
    return found


def error_for(code: str, message: str, *, hint: str | None = None, status: int = 500, **details: Any) -> TidemillError:
    """Give the error of this tree for a code that came over the wire.

    A code that this version does not know becomes the class of its HTTP status, and keeps the code.
    """
    classes = _tree(TidemillError)
    cls = classes.get(code)
    if cls is None:
        by_status = {
            400: InvalidSpec,
            401: NotAllowed,
            403: NotAllowed,
            404: NotFound,
            409: Conflict,
            413: InvalidSpec,
            422: InvalidSpec,
        }
        by_status |= {429: QuotaExceeded, 503: ServiceUnavailable, 504: WaitTimeout}
        cls = by_status.get(status, TidemillError)
    return cls(message, hint=hint, code=code, **details)
