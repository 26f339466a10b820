"""Where an output goes: the user's template filled in, and never a path out of the prefix.

Input keys and file names are other people's text. Empty segments and leading slashes go, `.` and `..` become
underscores (stores refuse them, or resolve them to another place), and so does a backslash of a file name, which some
stores read as a slash. Two inputs that thereby meet at one key are told apart by the conflict rules of `publish.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tidemill.models import CommitOutput, FunctionSpec, Job
from tidemill.record import keys

_CONTROL = re.compile(r"[\x00-\x1f\x7f\\]")
_NAME_BYTES = 200


def output_key(function: FunctionSpec, job: Job, name: str, *, platform_bucket: str = "tidemill") -> tuple[str, str]:
    """Give (bucket, key) of an output called `name`, perhaps with folders.

    With `output` in the function file: its prefix and template. Without one: the platform bucket, below `results/`.
    """
    safe = safe_path(_CONTROL.sub("_", name)) or "result"
    output = function.output
    if output is None:
        return platform_bucket, keys.results(job.function, job.id, job.generation) + safe
    # In one pass, so that a file that is called {name} stays that.
    filled = re.sub(r"\{(key|name)\}", lambda m: safe if m[1] == "name" else _input_key(function, job), output.key)
    return output.bucket, output.prefix.lstrip("/") + safe_path(filled)


def _input_key(function: FunctionSpec, job: Job) -> str:
    source = job.input
    if source.name is not None:  # a payload: its key is ours, its name the caller's
        return f"{job.id}/{safe_name(source.name)}"
    trigger = function.trigger_for(source.bucket, source.key)
    return safe_path(source.key.removeprefix(trigger.prefix) if trigger else source.key) or job.id


def safe_path(text: str) -> str:
    """The segments that a key may have, with single slashes between them; may be empty."""
    return "/".join(_segment(part) for part in text.split("/") if part)


def _segment(part: str) -> str:
    # MinIO refuses dots also with spaces around them.
    return "_" * len(part.strip()) if part.strip() in (".", "..") else part


def safe_name(name: str) -> str:
    """The last part of a file name, as one segment of at most 200 bytes that keeps its suffix."""
    last = _segment(_CONTROL.sub("_", name.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1])).strip() or "file"
    data = last.encode("utf-8", "replace")
    if len(data) <= _NAME_BYTES:
        return data.decode("utf-8")
    stem, suffix = split_suffix(data.decode("utf-8"))
    kept = suffix.encode()[-20:].decode("utf-8", "ignore")
    return stem.encode()[: _NAME_BYTES - len(kept.encode())].decode("utf-8", "ignore") + kept


def split_suffix(key: str) -> tuple[str, str]:
    """`a/b.tar.gz` -> (`a/b.tar`, `.gz`); a leading dot begins no suffix."""
    folder, slash, name = key.rpartition("/")
    dot = name.rfind(".")
    if dot <= 0:
        return key, ""
    return f"{folder}{slash}{name[:dot]}", name[dot:]


def numbered(key: str, number: int) -> str:
    """The key itself for 0, else `name-<number>.ext`."""
    if number == 0:
        return key
    stem, suffix = split_suffix(key)
    return f"{stem}-{number}{suffix}"


def without_doubles(outputs: Iterable[CommitOutput]) -> tuple[CommitOutput, ...]:
    """Number the outputs of one job that would meet at one key (a template without {name}, say)."""
    taken: set[tuple[str, str]] = set()
    result = []
    for output in outputs:
        number = 0
        while (output.bucket, key := numbered(output.key, number)) in taken:
            number += 1
        taken.add((output.bucket, key))
        result.append(output.model_copy(update={"key": key}))
    return tuple(result)
