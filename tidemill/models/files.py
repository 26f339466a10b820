"""Reading function and pool files: YAML with line numbers, so that a refusal names file, line, fault and remedy.

Unknown keys name the nearest known one. The line of a fault is the line of the key it is about.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from tidemill.errors import InvalidSpec
from tidemill.models.function import FunctionSpec
from tidemill.models.pool import PoolsFile, PoolSpec

Path_ = tuple[str | int, ...]
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class LoadedFunction:
    """A function as read from its folder."""

    spec: FunctionSpec
    folder: Path


def load_function(folder: Path) -> LoadedFunction:
    """Read `function.yaml` of a folder (or the file itself) and check it and the files that it names.

    Raises:
        InvalidSpec: with file, line, what is wrong, and what to write instead.
    """
    path = folder / "function.yaml" if folder.is_dir() else folder
    if not path.is_file():
        raise InvalidSpec(
            f"{folder}: there is no function.yaml",
            hint="Give the folder of a function; `tidemill function init NAME` writes a working one.",
        )
    folder = path.parent
    tree, lines = _parse(path)
    spec = _validate(FunctionSpec, tree, lines, path)
    _check_files(spec, folder, path, lines)
    return LoadedFunction(spec, folder)


def load_pools(path: Path) -> list[PoolSpec]:
    """Read a pools file.

    Raises:
        InvalidSpec: with file, line, what is wrong, and what to write instead.
    """
    tree, lines = _parse(path)
    pools = _validate(PoolsFile, tree, lines, path).pools
    seen: set[str] = set()
    for index, pool in enumerate(pools):
        if pool.name in seen:
            raise _fault(path, lines, ("pools", index, "name"), f"the pool {pool.name} stands here twice", "rename one")
        seen.add(pool.name)
    return list(pools)


def check_spec(data: Any, source: str = "spec") -> FunctionSpec:
    """Check a function spec that came as JSON.

    Raises:
        InvalidSpec: as `load_function`, with `source` in place of the file.
    """
    return _validate(FunctionSpec, data, {}, Path(source))


def _parse(path: Path) -> tuple[Any, dict[Path_, int]]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise InvalidSpec(f"{path}: there is no such file", hint="Check the path.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSpec(f"{path}: cannot be read: {error}", hint="Give a UTF-8 text file.") from error
    lines: dict[Path_, int] = {}
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        _collect(node, (), lines, path)
        return yaml.safe_load(text), lines
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise InvalidSpec(
            f"{where}: not valid YAML: {error.problem or error.context}",
            hint="Check the indentation, quotes and brackets at and just above this line.",
        ) from error
    except yaml.YAMLError as error:
        raise InvalidSpec(f"{path}: not valid YAML: {error}", hint="Save it as UTF-8 text.") from error
    except RecursionError as error:
        raise InvalidSpec(f"{path}: nested too deeply", hint="A function file has at most five levels.") from error


def _collect(node: yaml.Node | None, at: Path_, lines: dict[Path_, int], path: Path) -> None:
    """Note the line of each key and item, and refuse doubled keys, which YAML would swallow."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*at, str(key.value))
            if here in lines:
                raise InvalidSpec(
                    f"{path}:{key.start_mark.line + 1}: {key.value} stands here twice",
                    hint=f"Keep one; the other is in line {lines[here]}.",
                )
            lines[here] = key.start_mark.line + 1
            _collect(value, here, lines, path)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            here = (*at, index)
            lines[here] = item.start_mark.line + 1
            _collect(item, here, lines, path)


def _validate(model: type[M], tree: Any, lines: dict[Path_, int], path: Path) -> M:
    if not isinstance(tree, dict):
        raise InvalidSpec(f"{path}:1: a mapping of keys is needed here", hint="Begin with: name: my-function")
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        first, *others = error.errors(include_url=False)
        said, remedy = _explain(model, first)
        if others:
            remedy += f" ({len(others)} more to mend after this)"
        loc = tuple(first["loc"]) or (said.partition(" ")[0],)  # a fault of the whole begins with the key it is about
        raise _fault(path, lines, loc if loc in lines or first["loc"] else (), said, remedy) from error


def _fault(path: Path, lines: dict[Path_, int], loc: Path_, said: str, remedy: str) -> InvalidSpec:
    at = loc
    while at and at not in lines:
        at = at[:-1]
    line = lines.get(at)
    where = f"{path}:{line}" if line else (f"{path}:1" if lines else str(path))
    name = ".".join(str(part) for part in loc if not _is_branch(part))
    if said.startswith(f"{name} "):
        name = ""
    return InvalidSpec(f"{where}: {name + ': ' if name else ''}{said}", hint=remedy[0].upper() + remedy[1:])


def _is_branch(part: str | int) -> bool:
    """Pydantic names the branch of a union in a fault's place: no key of the file looks like that."""
    return isinstance(part, str) and bool(re.search(r"[\[\(]|^(float|int|str|tuple|literal)$|^[A-Z]", part))


def _explain(model: type[BaseModel], fault: Any) -> tuple[str, str]:
    kind, loc, message = fault["type"], fault["loc"], fault["msg"]
    if kind == "extra_forbidden":
        known = _known_keys(model, loc[:-1])
        near = difflib.get_close_matches(str(loc[-1]), known, n=1, cutoff=0.5)
        return "unknown key", f"did you mean {near[0]}?" if near else f"known here: {', '.join(sorted(known))}"
    if kind == "missing":
        return "this key is required", f"add {loc[-1]}: to it"
    if kind == "string_pattern_mismatch":
        pattern = fault["ctx"]["pattern"]
        return f"{fault['input']!r} does not have the form {pattern}", _form_hint(pattern)
    if kind == "value_error":
        said, _, remedy = str(fault["ctx"]["error"]).partition("; ")
        return said, remedy or "correct the value in this line"
    if kind == "string_type":
        return f"a text is needed, not {fault['input']!r}", "put it in quotes"
    return message[0].lower() + message[1:], f"correct the value {str(fault['input'])[:60]!r}"


def _form_hint(pattern: str) -> str:
    if "38" in pattern:
        return "use at most 39 lower-case letters, digits and hyphens, beginning with a letter"
    return "use 3 to 63 lower-case letters, digits, dots and hyphens"


def _known_keys(model: type[BaseModel], at: Path_) -> list[str]:
    """The keys that a model knows at a place, found by walking its JSON Schema."""
    schema = model.model_json_schema()
    nodes = [schema]
    for part in at:
        nodes = [found for node in nodes for found in _step(schema, node, part)]
    names: list[str] = []
    for node in nodes:
        for resolved in _branches(schema, node):
            names += list(resolved.get("properties", {}))
    return names


def _branches(schema: dict[str, Any], node: dict[str, Any]) -> list[dict[str, Any]]:
    if "$ref" in node:
        return _branches(schema, schema["$defs"][node["$ref"].rsplit("/", 1)[-1]])
    found = [node]
    for choice in node.get("anyOf", []):
        found += _branches(schema, choice)
    return found


def _step(schema: dict[str, Any], node: dict[str, Any], part: str | int) -> list[dict[str, Any]]:
    found = []
    for branch in _branches(schema, node):
        if isinstance(part, int) and isinstance(branch.get("items"), dict):
            found.append(branch["items"])
        elif isinstance(part, str) and part in branch.get("properties", {}):
            found.append(branch["properties"][part])
    return found


def _check_files(spec: FunctionSpec, folder: Path, path: Path, lines: dict[Path_, int]) -> None:
    """The handler's module and the requirements file must lie in the folder."""
    if spec.handler:
        module = spec.handler.partition(":")[0].replace(".", "/")
        if not (folder / f"{module}.py").is_file() and not (folder / module / "__init__.py").is_file():
            raise _fault(
                path, lines, ("handler",), f"there is no {module}.py beside this file", "name a module of this folder"
            )
    requirements = spec.environment.requirements
    if requirements and not (folder / requirements).is_file():
        raise _fault(
            path,
            lines,
            ("environment", "requirements"),
            f"there is no file {requirements}",
            "write it, or drop the key",
        )
