"""Change a module of the system right after its import, in every process of a run that imports it.

Each mutant is a folder with a `sitecustomize.py`; the lab puts it and this folder on the path of all processes.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


def after_import(name: str, change: Callable[[Any], None]) -> None:
    """Call `change(module)` when the module `name` has been imported."""
    sys.meta_path.insert(0, _Finder(name, change))


def swap(owner: Any, name: str, other: Any) -> Any:
    """Put `other` in the place of an attribute, and give the one that was there. One that is gone, or that is called
    in ways in which `other` cannot be called, ends the process: what broke then would be taken for a noticed mutant."""
    honest = getattr(owner, name)
    if not _fits(other, honest):
        raise SystemExit(f"{name}{inspect.signature(honest)} is not called like {inspect.signature(other)}")
    setattr(owner, name, other)
    return honest


def _fits(other: Any, honest: Any) -> bool:
    if not (inspect.isroutine(other) and inspect.isroutine(honest)):
        return True
    takes, given = inspect.signature(other).parameters, inspect.signature(honest).parameters
    kinds = {parameter.kind for parameter in takes.values()}
    places = [parameter for parameter in takes.values() if parameter.kind is not inspect.Parameter.KEYWORD_ONLY]
    wanted = [parameter for parameter in given.values() if parameter.kind is not inspect.Parameter.KEYWORD_ONLY]
    by_name = [name for name, parameter in given.items() if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
    return (inspect.Parameter.VAR_POSITIONAL in kinds or len(places) >= len(wanted)) and (
        inspect.Parameter.VAR_KEYWORD in kinds or takes.keys() >= set(by_name)
    )


def replace_in_script(scripting: Any, name: str, old: str, new: str) -> None:
    """Have the loader of Lua scripts give this one with another text; a text that is gone ends the process."""
    honest = scripting.source

    def source(wanted: str) -> str:
        text = honest(wanted)
        return text.replace(old, new) if wanted == name else text

    if old not in honest(name):
        raise SystemExit(f"{name}.lua does not say {old!r} any more")
    scripting.source = source


class _Finder:
    def __init__(self, name: str, change: Callable[[Any], None]) -> None:
        self._name = name
        self._change = change

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)  # the others find it
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        load, change = spec.loader.exec_module, self._change

        def exec_module(module: ModuleType) -> None:
            load(module)
            change(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
