"""A handler's return value, as files in the job's output folder: what lies there afterwards is what gets published.

- None: nothing, if the handler wrote files itself; else `result.json` with null.
- bytes: `result.bin`. A `File` or a `Path`: that file, under its own name (no copy if it is in the output folder
  already).
- A dict with bytes, a `File` or a `Path` among its values: several outputs, each under its name. A name without
  suffix gets one: `.bin` for bytes, the file's own for files, `.json` for the rest. A str under a name with a suffix
  other than `.json` is written as text.
- Everything else is JSON: `result.json`.

The agent trusts none of this: it opens what it finds without following links.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import PurePath
from typing import Any

from .failures import Failure

_RAW = (bytes, bytearray, memoryview)


def keep(result: Any, output: str, allowed: list[str], file_class: Any) -> None:
    """Writes `result` below `output`. `allowed` are the folders that a returned path may lie in, beside `output`."""
    writer = _Writer(output, allowed, file_class)
    if result is None:
        if not any(files for _, _, files in os.walk(output)):
            writer.write_json("result.json", None)
    elif isinstance(result, _RAW):
        writer.write_bytes("result.bin", result)
    elif writer.is_file(result):
        writer.write_file(None, result)
    elif isinstance(result, dict) and any(isinstance(v, _RAW) or writer.is_file(v) for v in result.values()):
        for name, value in result.items():
            writer.write_named(name, value)
    else:
        writer.write_json("result.json", result)
    writer.drop_moved()


class _Writer:
    def __init__(self, output: str, allowed: list[str], file_class: Any) -> None:
        self._output = os.path.realpath(output)
        self._allowed = allowed
        self._file_class = file_class
        self._written: set[str] = set()
        self._moved: set[str] = set()

    def is_file(self, value: Any) -> bool:
        return isinstance(value, (self._file_class, PurePath))

    def write_named(self, name: Any, value: Any) -> None:
        if not isinstance(name, str):
            raise Failure("output_name_invalid", f"An output needs a str as its name, not {type(name).__name__}")
        has_suffix = bool(PurePath(name).suffix)
        if isinstance(value, _RAW):
            self.write_bytes(name if has_suffix else f"{name}.bin", value)
        elif self.is_file(value):
            self.write_file(name, value)
        elif isinstance(value, str) and has_suffix and not name.endswith(".json"):
            self.write_bytes(name, value.encode("utf-8", "surrogatepass"))
        else:
            self.write_json(name if has_suffix else f"{name}.json", value)

    def write_json(self, name: str, value: Any) -> None:
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False)
            data = text.encode("utf-8")
        except (TypeError, ValueError, RecursionError) as error:
            raise Failure("result_not_serialisable", _why_not_json(value, error)) from error
        self.write_bytes(name, data)

    def write_bytes(self, name: str, data: Any) -> None:
        with open(self._target(name), "xb") as file:
            file.write(data)

    def write_file(self, name: str | None, value: Any) -> None:
        source = os.path.realpath(value.path if isinstance(value, self._file_class) else value)
        if not any(_is_below(source, folder) for folder in [self._output, *map(os.path.realpath, self._allowed)]):
            raise Failure(
                "output_not_allowed",
                f"{source} is not a file of this job: return files from ctx.output_dir or a temporary folder",
            )
        if os.path.isdir(source):
            raise Failure("output_not_a_file", f"{source} is a folder: write its files into ctx.output_dir instead")
        if not os.path.isfile(source):
            raise Failure("output_missing", f"The handler returned {source}, but there is no such file")
        inside = _is_below(source, self._output)
        if name is None:
            if inside:
                return
            name = getattr(value, "name", "") or os.path.basename(source)
        elif not PurePath(name).suffix:
            name += PurePath(source).suffix
        if inside and os.path.join(self._output, name) == source:
            self._written.add(source)
            return
        target = self._target(name)
        shutil.copyfile(source, target)
        if inside:
            self._moved.add(source)

    def drop_moved(self) -> None:
        """Files of the output folder that were returned under another name are published under that one only."""
        for path in self._moved - self._written:
            os.unlink(path)

    def _target(self, name: str) -> str:
        parts = name.split("/")
        if (
            any(part in ("", ".", "..") for part in parts)
            or "\0" in name
            or any(len(os.fsencode(p)) > 255 for p in parts)
        ):
            raise Failure("output_name_invalid", f"{name!r} cannot be the name of an output: write it like a/b.txt")
        target = os.path.join(self._output, *parts)
        if os.path.lexists(target):
            raise Failure(
                "output_exists", f"The handler returned {name!r}, and wrote a file of that name into ctx.output_dir too"
            )
        os.makedirs(os.path.dirname(target), exist_ok=True)
        self._written.add(target)
        return target


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder + os.sep)


def _why_not_json(value: Any, error: Exception) -> str:
    found = _first_odd(value, "the result", set())
    where, what = found if found is not None else ("the result", str(error))
    return (
        f"{where} is {what}, which JSON cannot hold; return dict, list, str, numbers, bytes, a Path or a tidemill.File"
    )


def _first_odd(value: Any, where: str, above: set[int]) -> tuple[str, str] | None:
    """Where the first thing stands that JSON cannot hold, and what it is."""
    if value is None or isinstance(value, (bool, int)):
        return None
    if isinstance(value, float):
        return None if value - value == 0 else (where, repr(float(value)))
    if isinstance(value, str):
        return None if value.isascii() or _is_utf8(value) else (where, "a str with half a surrogate pair")
    if isinstance(value, (dict, list, tuple)):
        if id(value) in above or len(above) > 200:
            return where, "something that contains itself, or is nested too deeply"
        above = above | {id(value)}
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(value, dict) and not isinstance(key, (str, int, float, bool, type(None))):
                return f"a key of {where}", _type_name(key)
            found = _first_odd(item, f"{where}[{key!r}]", above)
            if found is not None:
                return found
        return None
    return where, _type_name(value)


def _is_utf8(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
