"""What can go wrong while an environment is built, and what to do about it.

`uv` says why in words, not in codes, so the words decide. What is unknown counts as temporary: it costs another
attempt, whereas a wrong "permanent" would fail jobs that could have run.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from tidemill.errors import TidemillError

LOG_TAIL_LINES = 40


class EnvironmentFailed(TidemillError):
    """The environment of a function could not be built.

    `permanent`: the same requirements fail again until somebody changes them. `log_tail`: the end of what the installer
    printed, at most 40 lines.
    """

    code: ClassVar[str] = "environment_failed"
    status: ClassVar[int] = 422
    default_hint: ClassVar[str] = "Read the installer's lines below, mend the requirements file, and deploy again."

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        code: str | None = None,
        log_tail: str = "",
        permanent: bool = False,
        **details: Any,
    ) -> None:
        super().__init__(message, hint=hint, code=code, **details)
        self.log_tail = log_tail
        self.permanent = permanent

    def __str__(self) -> str:
        if not self.log_tail:
            return self.message
        return f"{self.message}\n\nEnd of the installer's log:\n{self.log_tail.rstrip()}"


# (pattern in the installer's lines, permanent, what happened, what to do). The first that matches counts: a download
# that failed often also says that no version was found.
_CAUSES: tuple[tuple[str, bool, str, str], ...] = (
    (
        r"hash mismatch|hashes? .*did not match",
        True,
        "a downloaded file is not the one that the requirements file names",
        "Make the lock file again (uv pip compile --generate-hashes), and find out why the file changed.",
    ),
    (
        r"no space left on device|disk quota exceeded",
        False,
        "the disk is full",
        "Free some space for the environments and for uv's cache (uv cache prune).",
    ),
    (
        r"permission denied|read-only file system",
        False,
        "the installer may not write to its folder or its cache",
        "Let the agent's user write to its state directory and to uv's cache (UV_CACHE_DIR).",
    ),
    (
        r"error sending request|dns error|failed to connect|connection (refused|reset)|connect error|timed out"
        r"|network timeout|network is unreachable|failed to lookup address|error trying to connect|network was disabled"
        r"|status (client|server) error \((408|429|5\d\d)|peer certificate|certificate verify",
        False,
        "the package index could not be reached",
        "Check the network of the agent's host, its proxy (HTTPS_PROXY) and its package index (UV_DEFAULT_INDEX).",
    ),
    (
        r"must have their versions pinned|hashes? .*(missing|required)|require-hashes",
        True,
        "some requirements have hashes and others do not",
        "Give the hash of every package: uv pip compile --generate-hashes requirements.in -o requirements.txt.",
    ),
    (
        r"couldn't parse|failed to parse|expected .*(package name|version)|unexpected .*(found|expected)",
        True,
        "the requirements file has a line that is no requirement",
        "Correct the line that the installer names.",
    ),
    (
        r"no such file|file not found|does not exist",
        True,
        "a file that the requirements name does not exist",
        "Put the file into the function's folder, and name it relative to the requirements file.",
    ),
    (
        r"no solution found|not found in the package registry|no version of|conflict|no matching distribution"
        r"|has no wheels with a matching|doesn't have a (source distribution or )?wheel|requires-python",
        True,
        "no versions fit together, this Python and this machine",
        "Check names and versions, for example with `uv pip compile` and the same Python version.",
    ),
    (
        r"failed to build|build backend|failed to prepare distributions",
        True,
        "a package had to be compiled from source, and that failed",
        "Choose a version that has a wheel for this Python, or install what its build needs on the agent's host.",
    ),
)


def failure(what: str, lines: list[str]) -> EnvironmentFailed:
    """Give the error for the lines of an installer that failed."""
    text = "\n".join(lines)
    for pattern, permanent, happened, remedy in _CAUSES:
        if re.search(pattern, text, re.IGNORECASE):
            return EnvironmentFailed(
                f"{what}: {happened}. {remedy}", hint=remedy, log_tail=tail(lines), permanent=permanent
            )
    return EnvironmentFailed(f"{what}: the installer failed.", log_tail=tail(lines))


def tail(lines: list[str]) -> str:
    return "\n".join(lines[-LOG_TAIL_LINES:])
