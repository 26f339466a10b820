"""From an error to a message that says what to do next, and to the exit code of the contract."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import click

from tidemill.errors import (
    FunctionFailed,
    JobCancelled,
    NoCapacity,
    NotAllowed,
    QuotaExceeded,
    ServiceUnavailable,
    TidemillError,
    WaitTimeout,
)

OK, JOB_FAILED, WRONG_USE, TIMED_OUT, NOT_ALLOWED, NOT_REACHABLE, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130
_CODES: tuple[tuple[tuple[type[TidemillError], ...], int], ...] = (
    ((FunctionFailed, JobCancelled, NoCapacity), JOB_FAILED),
    ((WaitTimeout,), TIMED_OUT),
    ((NotAllowed, QuotaExceeded), NOT_ALLOWED),
    ((ServiceUnavailable,), NOT_REACHABLE),
)
# Errors of the local system have classes that are imported only with it.
_LOCAL_CODES = {"not_running": NOT_REACHABLE, "start_failed": NOT_REACHABLE, "server_missing": NOT_REACHABLE}


class Detached(Exception):
    """Ctrl-C on a wait: the jobs go on. `command` waits for them again."""

    def __init__(self, command: str) -> None:
        super().__init__(command)
        self.command = command


def exit_code(error: TidemillError) -> int:
    """Give the exit code of an error."""
    for classes, code in _CODES:
        if isinstance(error, classes):
            return code
    return _LOCAL_CODES.get(error.error_code, WRONG_USE)


def say(message: str) -> None:
    """Write to stderr; what cannot be shown there is written as an escape."""
    from tidemill.cli.show import clean

    click.echo("\n".join(clean(line) for line in message.splitlines()), err=True)


def complain(error: TidemillError) -> None:
    """Say what went wrong and what to do."""
    say(f"Error: {error}")
    say(f"Next: {error.hint}")


def guarded(work: Callable[[], Any]) -> NoReturn:
    """Run a command, report what it raises, and leave with the exit code."""
    try:
        code = work()
        sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else OK)
    except click.ClickException as error:
        error.show()
        sys.exit(WRONG_USE)
    except Detached as detached:
        say(f"\nDetached; the work goes on. Come back with: {detached.command}")
        sys.exit(INTERRUPTED)
    except (KeyboardInterrupt, click.Abort):
        say("Interrupted.")
        sys.exit(INTERRUPTED)
    except TidemillError as error:
        complain(error)
        sys.exit(exit_code(error))
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0].startswith("tidemill"):
            raise  # a fault of ours, not a missing extra
        say(f"Error: this command needs the package {error.name}, which is not installed.")
        say("Next: pip install 'tidemill[local]' for all of one machine; [server] or [worker] for their services.")
        sys.exit(WRONG_USE)
    except BrokenPipeError:
        # The reader has gone, as with `| head`; the interpreter's own flush at exit must not complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(OK)
    except OSError as error:
        say(f"Error: {error}")
        say("Next: check that the file or folder is there and that you may use it.")
        sys.exit(WRONG_USE)
