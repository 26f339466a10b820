"""Functions that are a command: a process per job, told by its environment, judged by its exit code.

0 is success, 75 (EX_TEMPFAIL) asks for another attempt, everything else is a failure. Files below the output folder
are the outputs. Beside `TIDEMILL_*` it sees the variables that OSCAR gives its scripts, so that those run unchanged.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

from . import wire
from .failures import Failure

if TYPE_CHECKING:
    from .serve import Cancel

EXIT_TEMPORARY = 75


class Commands:
    """A command, found once."""

    def __init__(self, argv: list[str], code: str, cancel: Cancel) -> None:
        self._argv = argv
        self._code = code
        self._cancel = cancel
        # With a slash in it a name is relative to the function's folder, which is the working directory already.
        if shutil.which(argv[0]) is None:
            hint = "is it executable (chmod +x)?" if os.path.exists(argv[0]) else "there is no such program in PATH"
            raise Failure("command_not_found", f"The command {argv[0]!r} cannot be started: {hint}")

    def run(self, message: wire.Message) -> None:
        """One job. Raises Failure when the exit code is not 0."""
        env = {**os.environ, **variables(message)}
        process = subprocess.Popen(self._argv, cwd=self._code, env=env, stdin=subprocess.DEVNULL)
        self._cancel.on_ask = process.terminate
        if self._cancel.asked():  # it was asked before there was a process to tell
            process.terminate()
        code = process.wait()
        if code == 0:
            return
        name = os.path.basename(self._argv[0])
        if code == EXIT_TEMPORARY:
            raise Failure("temporary_error", f"{name} ended with exit code 75: try again later", kind="temporary")
        if code < 0:
            raise Failure("command_killed", f"{name} was ended by {_signal_name(-code)}", kind="failed")
        raise Failure("command_failed", f"{name} ended with exit code {code}", kind="failed")


def variables(message: wire.Message) -> dict[str, str]:
    """The environment variables of one job."""
    job, file, output = message["job"], message["file"], message["output"]
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {
        "TIDEMILL_JOB_ID": str(job["id"]),
        "TIDEMILL_FUNCTION": str(job["function"]),
        "TIDEMILL_REVISION": str(job["revision"]),
        "TIDEMILL_GENERATION": str(job["generation"]),
        "TIDEMILL_ATTEMPT": str(job["attempt"]),
        "TIDEMILL_INPUT_FILE": file["path"],
        "TIDEMILL_INPUT_BUCKET": file["bucket"],
        "TIDEMILL_INPUT_KEY": file["key"],
        "TIDEMILL_OUTPUT_DIR": output,
        "TIDEMILL_PARAMS": json.dumps(message["params"], ensure_ascii=False),
        "INPUT_FILE_PATH": file["path"],
        "TMP_INPUT_DIR": os.path.dirname(file["path"]),
        "TMP_OUTPUT_DIR": output,
        "STORAGE_OBJECT_KEY": file["key"],
        "EVENT": json.dumps(_event(file, now), ensure_ascii=False),
        "EVENT_TIME": now,
        "JOB_UUID": str(job["id"]),
        "RESOURCE_ID": os.uname().nodename,
        "OSCAR_SERVICE_NAME": str(job["function"]),
    }


def _event(file: dict[str, Any], now: str) -> dict[str, Any]:
    """The bucket event that an OSCAR script expects in EVENT."""
    object_ = {"key": file["key"], "size": file["size"], "contentType": file["content_type"]}
    record = {
        "eventSource": "tidemill",
        "eventName": "s3:ObjectCreated:Put",
        "eventTime": now,
        "s3": {"bucket": {"name": file["bucket"]}, "object": object_},
    }
    return {"EventName": record["eventName"], "Key": f"{file['bucket']}/{file['key']}", "Records": [record]}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
