"""How soon the system is ready, and what it costs while nothing happens."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import psutil

from bench.latency import FUNCTION, POOL
from bench.system import System, running
from bench.table import Table

IDLE_S = 60.0
OURS = ("up", "gateway", "placement")


def run() -> Table:
    table = Table("Start, and 60 s of nothing")
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder:
        state = Path(folder) / "state"
        with running([POOL], [FUNCTION], state_dir=state) as system:
            table.add("up to ready, fresh state", system.ready_s, "s")
        with running([POOL], [FUNCTION], state_dir=state) as system:
            table.add("up to ready, used state", system.ready_s, "s", most=8)
            _idle(system, table)
    return table


def _idle(system: System, table: Table) -> None:
    time.sleep(5)  # what the start has left to do
    processes = {row["name"]: psutil.Process(row["pid"]) for row in _rows(system)}
    processes["up"] = psutil.Process(system.process.pid)
    before = {name: sum(process.cpu_times()[:2]) for name, process in processes.items()}
    time.sleep(IDLE_S)
    shares = {name: 100 * (sum(p.cpu_times()[:2]) - before[name]) / IDLE_S for name, p in processes.items()}
    table.add("our processes together", sum(shares[name] for name in OURS), "% of a core", most=3)
    for name in sorted(shares, key=lambda found: (found not in OURS, found)):
        memory_mb = processes[name].memory_info().rss / 1e6
        table.add(f"{name}: CPU", shares[name], "% of a core")
        table.add(f"{name}: memory", memory_mb, "MB")


def _rows(system: System) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = system.status["processes"]
    return rows
