"""Entry of the function's process: `<function's python> -I child.py <requests fd> <replies fd>`.

Loads our files under private names, before the function's folder is on the path. A process that `multiprocessing`
spawns runs this file again (as `__mp_main__`): it gets the module `tidemill` that way, and nothing else happens.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))


def _load(name: str, path: str, **options: Any) -> Any:
    spec = importlib.util.spec_from_file_location(name, path, **options)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _offer_tidemill() -> Any:
    """The module that functions import as `tidemill`: what a handler needs, and no more."""
    handler = _load("_tidemill_runner.handler", os.path.join(HERE, "handler.py"))
    tidemill = type(sys)("tidemill", "What a function's code needs of Tidemill.")
    for name in ("Context", "File", "PermanentError", "TemporaryError"):
        value = getattr(handler, name)
        value.__module__ = "tidemill"  # how tracebacks name it and pickle finds it
        setattr(tidemill, name, value)
    tidemill.__dict__["__version__"] = os.environ.get("TIDEMILL_VERSION", "")
    sys.modules["tidemill"] = tidemill
    return handler


_load("_tidemill_runner", os.path.join(HERE, "__init__.py"), submodule_search_locations=[HERE])
HANDLER = _offer_tidemill()

if __name__ == "__main__":
    importlib.import_module("_tidemill_runner.serve").serve(HANDLER, *(int(arg) for arg in sys.argv[1:3]))
