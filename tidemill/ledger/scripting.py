"""The one loader of the Lua scripts: `scripts/<name>.lua` behind `scripts/common.lua` and the table of keys.

Scripts that only shrink or move what is there may run above `maxmemory` (`allow-oom`), so that agents can always
report; those that bring new data in are refused by the server then.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from tidemill.ledger.keys import lua_table

_COMMON = "common"
_BRING_DATA = frozenset({"submit", "settle", "append_log", "note_ignored", "relist", "set_grants"})


@dataclass(frozen=True, slots=True)
class Script:
    """A script as the server sees it. `sha` is what EVALSHA takes."""

    name: str
    text: str
    sha: str


def names() -> list[str]:
    """The names of all scripts, sorted."""
    entries = (entry.name for entry in files("tidemill.ledger").joinpath("scripts").iterdir())
    return sorted(name[:-4] for name in entries if name.endswith(".lua") and name != f"{_COMMON}.lua")


def source(name: str) -> str:
    """The file of a script as it was written."""
    return files("tidemill.ledger").joinpath("scripts", f"{name}.lua").read_text(encoding="utf-8")


@cache
def script(name: str) -> Script:
    """Give the script of this name, ready to be called."""
    body = source(_COMMON) + "\n" + source(name)
    first = "#!lua" if name in _BRING_DATA else "#!lua flags=allow-oom"
    text = "\n".join([first, lua_table(body), body])
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
