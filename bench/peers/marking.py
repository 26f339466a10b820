"""The function of the fault lab as the peer runs it, and the mark that each run leaves.

A mark is one line in the file that `PEER_MARKS` names, with the SHA-256 of the input: so many lines, so many runs.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.faults.functions.lab import Lab

_MUTE = SimpleNamespace(info=lambda text: None)
_JOB = SimpleNamespace(id="", attempt=0)


def run(path: Path, outputs: Path) -> dict[str, Any]:
    """Do what the lab's input asks for."""
    body = path.read_bytes()
    with Path(os.environ["PEER_MARKS"]).open("a") as marks:  # one short write: lines of many processes stay whole
        marks.write(hashlib.sha256(body).hexdigest() + "\n")
    ctx = SimpleNamespace(job=_JOB, log=_MUTE, output_dir=outputs)
    lab = Lab()
    lab.load(ctx)
    result: dict[str, Any] = lab(SimpleNamespace(read=lambda: body), ctx)
    return result


def runs(marks: Path) -> Counter[str]:
    """How often each input was run, by its SHA-256."""
    return Counter(marks.read_text().split()) if marks.exists() else Counter()
