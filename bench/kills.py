"""What a SIGKILL of one process costs a job, at the default settings: lease 15 s, sweep 2 s.

A runner and an agent are killed while a job runs there; a gateway and a placement service are killed, and files come at
once: one more than there are slots, so that the last one needs a decision of placement. The delay is the time from the
kill until all results are visible, less the three seconds that a job runs (six, where one waits for a slot).
"""

from __future__ import annotations

import io
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from bench.system import System, running
from bench.table import Table, quantile
from tidemill.ledger import connect
from tidemill.local.commands import status
from tidemill.models import JobState

FUNCTION = Path(__file__).parent / "functions" / "steady"
RUN_S = 3.0  # as the function says
POOL: dict[str, Any] = {
    "name": "warm",
    "slots": 2,
    "price": {"usd_per_hour": 0.1},
    "agents": {"min": 1, "max": 1, "start": "2s"},
    "idle_timeout": "10m",
}
BOUND_S = 15.0 + 2.0
KILLS = int(os.environ.get("BENCH_KILLS", "5"))
VICTIMS = ("runner", "agent", "gateway", "placement")
_INTO_THE_RUN_S = 1.0
_LIMIT_S = 120.0


def measure(table: Table, kills: int = KILLS) -> None:
    """Add the median and the longest delay after kills of each kind to the table."""
    with running([POOL], [FUNCTION]) as system:
        for what in VICTIMS:
            delays = []
            for number in range(kills):
                _job(system, f"before-{what}-{number}")  # all is well again, and warm
                delays.append(_delay_s(system, what, number))
                print(f"  killed {what}: {delays[-1]:.1f} s", flush=True)
            table.add(f"delay after a kill of {what}, p50", quantile(delays, 0.5), "s")
            table.add(f"delay after a kill of {what}, max", max(delays), "s", most=BOUND_S)


def _delay_s(system: System, what: str, number: int) -> float:
    name = f"{what}-{number}"
    if what in ("gateway", "placement"):
        names = [f"{name}-{file}" for file in range(POOL["slots"] + 1)]
        killed = _kill(system, what)
        for one in names:
            _put(system, one)
        runs = 2
    else:
        names, runs = [name], 1
        _put(system, name)
        _wait(lambda: _running(system), f"{name} runs")
        time.sleep(_INTO_THE_RUN_S)
        killed = _kill(system, what)
    for one in names:
        _wait(lambda one=one: _done(system, one), f"the result of {one}")
    return time.monotonic() - killed - runs * RUN_S


def _job(system: System, name: str) -> None:
    _put(system, name)
    _wait(lambda: _done(system, name), f"the result of {name}")


def _kill(system: System, what: str) -> float:
    """Kill one process of a kind; gives when."""
    rows = {row["name"]: row["pid"] for row in status(system.state_dir)["processes"] if row["pid"] is not None}
    if what in rows:
        pid = rows[what]
    else:
        pid = next(pid for name, pid in rows.items() if name.startswith(POOL["name"]))
        if what == "runner":
            [pid] = _busy(psutil.Process(pid))
    os.kill(pid, signal.SIGKILL)
    return time.monotonic()


def _busy(agent: psutil.Process) -> list[int]:
    """The runner of an agent; one job runs at a time here, on the runner that the pool keeps warm."""
    return [child.pid for child in agent.children()]


def _put(system: System, name: str) -> None:
    system.s3().put_object("inbox", f"steady/{name}", io.BytesIO(b"x" * 1000), 1000)


def _done(system: System, name: str) -> bool:
    return any(True for _ in system.s3().list_objects("outbox", f"steady/{name}/", recursive=True))


def _running(system: System) -> bool:
    ledger = connect(system.status["redis"])
    try:
        return any(job.state is JobState.running for job in ledger.iter_open())
    finally:
        ledger.close()


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {_LIMIT_S:.0f} s in vain: {what}")
        time.sleep(0.05)
