"""Exceptions of a function, as the agent gets them: kind, code, message, traceback without our own frames."""

from __future__ import annotations

import os
import traceback
from types import TracebackType
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_MESSAGE_LIMIT, _TRACEBACK_LIMIT = 4096, 32768
# The codes of jobs that come from a runner. All others are for the agent and the services to say, so the agent takes no
# other from here: a function can write into our pipe.
CODES = frozenset(
    {
        "command_failed",
        "command_killed",
        "command_not_found",
        "function_error",
        "function_exited",
        "output_exists",
        "output_missing",
        "output_name_invalid",
        "output_not_a_file",
        "output_not_allowed",
        "permanent_error",
        "result_not_serialisable",
        "temporary_error",
    }
)
# In load() these say that the code is wrong; others (no network, no memory, a busy GPU) may pass.
_WRONG_CODE = (
    ImportError,
    SyntaxError,
    NameError,
    AttributeError,
    TypeError,
    ValueError,
    LookupError,
    AssertionError,
    NotImplementedError,
    FileNotFoundError,
    SystemExit,
)


class Failure(Exception):
    """Something that we found wrong, not the function itself: no traceback is needed to understand it."""

    def __init__(self, code: str, message: str, kind: str = "permanent") -> None:
        super().__init__(message)
        self.code = code
        self.kind = kind


def describe(api: Any, error: BaseException, phase: str) -> dict[str, Any]:
    """`kind` (failed, permanent, temporary), `code`, `message`, `traceback`, `delay_s`; `phase` is load or run."""
    kind, code = _judge(api, error, phase)
    delay_s = getattr(error, "delay", None) if isinstance(error, api.TemporaryError) else None
    try:
        delay_s = None if delay_s is None else max(0.0, float(delay_s))
    except (TypeError, ValueError, OverflowError):
        delay_s = None  # a delay that is no number is no reason to lose the error that carries it
    return {
        "kind": kind,
        "code": code,
        "message": _message(error)[:_MESSAGE_LIMIT],
        "traceback": "" if isinstance(error, Failure) else _trimmed(error)[-_TRACEBACK_LIMIT:],
        "delay_s": delay_s,
    }


def _judge(api: Any, error: BaseException, phase: str) -> tuple[str, str]:
    if isinstance(error, Failure):
        return error.kind, error.code
    if isinstance(error, api.PermanentError):
        return "permanent", "permanent_error"
    if isinstance(error, api.TemporaryError):
        return "temporary", "temporary_error"
    if isinstance(error, SystemExit):
        return ("permanent" if phase == "load" else "failed"), "function_exited"
    if phase == "load":
        return ("permanent" if isinstance(error, _WRONG_CODE) else "failed"), "load_failed"
    return "failed", "function_error"


def _message(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as inner:
        text = f"(its text cannot be made: {type(inner).__name__})"
    if isinstance(error, Failure):
        return text
    if isinstance(error, SystemExit):
        return f"The function called sys.exit({error.code!r})"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _trimmed(error: BaseException) -> str:
    """The traceback from the function's first frame on. An import that failed begins below the import machinery."""
    frames: TracebackType | None = error.__traceback__
    while frames is not None and _is_ours(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    try:
        return "".join(traceback.format_exception(type(error), error, frames))
    except Exception as inner:
        return f"(the traceback cannot be shown: {type(inner).__name__})"


def _is_ours(filename: str) -> bool:
    return filename.startswith((_HERE, "<frozen importlib")) or filename.endswith("/importlib/__init__.py")
