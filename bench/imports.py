"""CPU time of what every program and every command pays: imports and `tidemill --help`."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from statistics import median

from bench.table import Table

RUNS = 11


def run() -> Table:
    table = Table("Imports and the command line (CPU time, median)")
    bare = _cpu_ms("pass")
    table.add("python -c pass", bare, "ms")
    table.add("import tidemill", _cpu_ms("import tidemill") - bare, "ms", most=150)
    table.add("from tidemill import Client", _cpu_ms("from tidemill import Client") - bare, "ms", most=150)
    table.add("tidemill --help", _cpu_ms(None), "ms", most=400)
    table.notes.append(f"{RUNS} runs each; the imports without the interpreter's own start.")
    return table


def _cpu_ms(code: str | None) -> float:
    argv = (
        [sys.executable, "-c", code] if code else [os.path.join(os.path.dirname(sys.executable), "tidemill"), "--help"]
    )
    times = []
    for _ in range(RUNS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return 1000 * median(times)
