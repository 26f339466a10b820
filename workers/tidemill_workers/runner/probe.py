"""A function that looks for what it must not find; `tidemill doctor` runs it to say what really holds."""

from __future__ import annotations

import os
from typing import Any


def probe(file: Any, ctx: Any) -> dict[str, bool]:
    """`params`: `agent_pid`, `secret` (the path of a file of the agent's). Which of them could be read."""
    return {
        "agent_environment": _readable(f"/proc/{ctx.params['agent_pid']}/environ"),
        "agent_descriptors": _any_followed(f"/proc/{ctx.params['agent_pid']}/fd"),
        "agent_files": _readable(ctx.params["secret"]),
    }


def _readable(path: str) -> bool:
    try:
        with open(path, "rb") as source:
            source.read(1)
    except OSError:
        return False
    return True


def _any_followed(folder: str) -> bool:
    """Whether a descriptor can be used. Their numbers alone may be listed, which is harmless."""
    try:
        return bool([os.readlink(f"{folder}/{number}") for number in os.listdir(folder)])
    except OSError:
        return False
