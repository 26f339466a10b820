"""Run measurements and print their tables: `python -m bench [NAME ...] [--write]`."""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench import faults, idle, imports, intake, latency, ledger, ocr, peer, rebuild, reconcile
from bench.table import Table

BENCHES: dict[str, Callable[[], Table]] = {
    "latency": latency.run,
    "peer": peer.run,
    "ledger": ledger.run,
    "intake": intake.run,
    "reconcile": reconcile.run,
    "rebuild": rebuild.run,
    "faults": faults.run,
    "ocr": ocr.run,
    "imports": imports.run,
    "idle": idle.run,
}
_MARK = re.compile(r"^<!-- (\w+) -->\n", re.MULTILINE)
PAGE = Path(__file__).parents[1] / "docs" / "reference" / "benchmarks.md"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="Example: python -m bench imports idle", prog="python -m bench"
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which to run: {', '.join(BENCHES)} (default: all)")
    parser.add_argument("--write", action="store_true", help=f"put the tables into {PAGE.name}")
    options = parser.parse_args()
    unknown = set(options.names) - set(BENCHES)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(BENCHES)}")
    tables = {}
    for name in options.names or BENCHES:
        print(f"\n-- {name}", flush=True)
        began, foreign = time.monotonic(), _cpu_s()
        table = BENCHES[name]()
        table.notes.append(
            f"Took {time.monotonic() - began:.0f} s; the machine used {_cpu_s() - foreign:.0f} s of CPU time in all."
        )
        print(table.text(), flush=True)
        tables[name] = table
    if options.write:
        PAGE.write_text(_page(PAGE.read_text(), tables))
        print(f"\nwrote {PAGE}")
    missed = [row for table in tables.values() for row in table.rows if row.met is False]
    print(f"\n{len(missed)} of the stated bounds were missed." if missed else "\nAll stated bounds hold.")
    return 1 if missed else 0


def _cpu_s() -> float:
    """CPU seconds that the whole machine has used: a benchmark next to other work is worth little."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle_ticks = fields[3] + fields[4]
    return (sum(fields) - idle_ticks) / float(os.sysconf("SC_CLK_TCK"))


def _page(old: str, tables: dict[str, Table]) -> str:
    """The page with these tables new, and the others as they were."""
    parts = _MARK.split(old)[1:]
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    sections |= {name: table.markdown() for name, table in tables.items()}
    head = [
        "# Benchmarks",
        "",
        f"Measured on a virtual machine with {os.cpu_count()} cores, Linux, Python {platform.python_version()}; "
        "everything (servers, services, functions, load) on the same cores.",
        "`make bench ARGS=--write` measures again and writes this page; `ARGS='peer --write'` only one part.",
        "",
    ]
    found = [f"<!-- {name} -->\n{sections[name].strip()}\n" for name in BENCHES if name in sections]
    return "\n".join(head) + "\n" + "\n".join(found)


if __name__ == "__main__":
    sys.exit(main())
