"""Functions of Python: find the handler, keep its state, call it, hand its result on."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import results, wire
from .failures import Failure

if TYPE_CHECKING:
    from .reports import Reports
    from .serve import Cancel


class Calls:
    """A handler, loaded once: a class (made here, `load(ctx)` called if there is one), or any other callable as it
    is."""

    def __init__(self, api: Any, message: wire.Message, reports: Reports, cancel: Cancel) -> None:
        self._api = api
        self._reports = reports
        self._cancel = cancel
        self._code = message["code"]
        gpu = message.get("gpu")
        self._gpu = None if gpu is None else api.Gpu(uuid=gpu.get("uuid", ""), memory_bytes=gpu.get("memory_bytes"))
        self._call = self._load(message["handler"])

    def run(self, message: wire.Message) -> None:
        """One job: its outputs lie in the output folder afterwards. Raises whatever the handler raises."""
        api = self._api
        file, output = message["file"], message["output"]
        source = api.File(**{**file, "path": file["path"]})
        where = {name: file[name] for name in ("bucket", "key", "size")}
        job = api.Job(**message["job"], input=where)
        ctx = self._context(message["params"], job, output)
        result = self._call(source, ctx)
        self._reports.end_copies()
        allowed = [self._code, os.path.dirname(file["path"]), os.environ["HOME"], os.environ["TMPDIR"], "/dev/shm"]
        results.keep(result, output, allowed, api.File)

    def _context(self, params: Any, job: Any, output: str | None) -> Any:
        return self._api.Context(
            params,
            job=job,
            gpu=self._gpu,
            log=self._reports.log,
            output_dir=output,
            report=self._reports.progress,
            is_cancelled=self._cancel.asked,
        )

    def _load(self, handler: str) -> Callable[[Any, Any], Any]:
        found: Any = _find(handler)
        if isinstance(found, type):
            found = found()
        if not callable(found):
            raise Failure(
                "handler_not_callable", f"{handler} is {type(found).__name__}, which cannot be called with (file, ctx)"
            )
        load = getattr(found, "load", None)
        if callable(load):
            load(self._context({}, None, None))
        call: Callable[[Any, Any], Any] = found
        return call


def _find(handler: str) -> Any:
    module_name, _, attribute = handler.partition(":")
    module = importlib.import_module(module_name)
    try:
        return functools.reduce(getattr, attribute.split("."), module)
    except AttributeError as error:
        known = sorted(name for name, value in vars(module).items() if callable(value) and not name.startswith("_"))
        names = ", ".join(known[:20]) or "nothing that can be called"
        raise Failure("handler_not_found", f"The module {module_name} has no {attribute!r}; it has: {names}") from error
