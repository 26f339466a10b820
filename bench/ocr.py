"""Throughput of the `ocr` example against a plain Python loop over the same files in as many processes."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.system import running
from bench.table import Table
from tidemill_workers.agent.service import default_environments
from tidemill_workers.environments import EnvironmentBuilder

EXAMPLES = Path(__file__).parents[1] / "examples"
PROCESSES = 2
FILES = 80  # a run ends with one busy process: the fewer files, the more that weighs
ROUNDS = 3
POOL: dict[str, Any] = {
    "name": "readers",
    "slots": PROCESSES,
    "price": {"usd_per_hour": 0.1},
    "agents": {"min": 0, "max": 1, "start": "2s"},
    "idle_timeout": "10m",
    "env": {"OMP_NUM_THREADS": "1"},
}
# The peer: what somebody would write who has no queue. One process; the model is loaded before the clock starts.
LOOP = """
import sys, time, types, pathlib
tidemill = types.ModuleType("tidemill")
tidemill.Context = tidemill.File = object
tidemill.PermanentError = ValueError
sys.modules["tidemill"] = tidemill
sys.path.insert(0, sys.argv[1])
import ocr
engine = ocr.Ocr(); engine.load(None)
class Context:
    params = {}; cancelled = False
    def progress(self, *_): ...
class File:
    def __init__(self, path): self.path, self.name = path, pathlib.Path(path).name
print("ready", flush=True)
sys.stdin.readline()
for path in sys.argv[2:]:
    engine(File(path), Context())
print("done", flush=True)
"""


def run() -> Table:
    table = Table("The `ocr` example against a plain loop")
    python = EnvironmentBuilder(default_environments()).ensure("ocr", EXAMPLES / "ocr/requirements.txt", True).python
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder:
        files = _samples(python, Path(folder))
        ratios = []
        with running([POOL], [EXAMPLES / "ocr"]) as system:
            client = system.client()
            list(client.map("ocr", files[: 2 * PROCESSES], timeout=120))  # models loaded in all runners
            for number in range(ROUNDS):
                began = time.monotonic()
                for file in files:
                    client.upload(file, "inbox", f"ocr/round{number}/{file.name}")
                _wait(system.s3(), f"ocr/round{number}/", len(files))
                ours_s = time.monotonic() - began
                peer_s = _loop(python, files)
                ratios.append(peer_s / ours_s)
                print(f"  round {number + 1}: loop {peer_s:.1f} s, Tidemill {ours_s:.1f} s", flush=True)
    table.add("throughput, share of the loop's, median", sorted(ratios)[len(ratios) // 2], "", least=0.95)
    table.add("throughput, share of the loop's, worst round", min(ratios), "")
    table.notes.append(f"{len(files)} pictures, {PROCESSES} processes with one thread each, {ROUNDS} rounds in turn.")
    return table


def _samples(python: Path, folder: Path) -> list[Path]:
    command = [str(python), "-P", str(EXAMPLES / "samples/make.py"), str(folder), "--count", str(FILES)]
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES / "samples")}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return [folder / row["path"] for row in rows if row["function"] == "ocr"]


def _wait(s3: Any, prefix: str, count: int) -> None:
    began = time.monotonic()
    while (done := sum(1 for _ in s3.list_objects("outbox", prefix=prefix, recursive=True))) < count:
        spent_s = time.monotonic() - began
        if spent_s > 600:
            raise RuntimeError("not all results are there after 600 s")
        # A listing costs CPU of the same two cores: seldom at first, often near the end.
        time.sleep(min(5.0, max(0.05, 0.3 * spent_s * (count - done) / max(1, done))))


def _loop(python: Path, files: list[Path]) -> float:
    """Seconds of the plain loop, files dealt out to the processes."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    loops = []
    for number in range(PROCESSES):
        mine = [str(file) for file in files[number::PROCESSES]]
        loops.append(
            subprocess.Popen(
                [str(python), "-c", LOOP, str(EXAMPLES / "ocr"), *mine],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
        )
    for loop in loops:
        assert loop.stdout is not None
        loop.stdout.readline()
    began = time.monotonic()
    for loop in loops:
        assert loop.stdin is not None
        loop.stdin.write("go\n")
        loop.stdin.flush()
    for loop in loops:
        if loop.wait() != 0:
            raise RuntimeError("the plain loop failed")
    return time.monotonic() - began
