"""A `tidemill up` of its own for a measurement."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from minio import Minio

from tidemill import Client

TIDEMILL = (sys.executable, "-P", "-m", "tidemill")


@dataclass
class System:
    process: subprocess.Popen[bytes]
    state_dir: Path
    status: dict[str, Any]
    ready_s: float

    def client(self) -> Client:
        return Client(self.status["url"], self.status["token"])

    def s3(self) -> Minio:
        store = self.status["store"]
        return Minio(
            urlsplit(store["endpoint"]).netloc,
            access_key=store["access_key"],
            secret_key=store["secret_key"],
            region=store["region"],
            secure=False,
        )


@contextlib.contextmanager
def running(
    pools: list[dict[str, Any]],
    functions: list[Path],
    *options: str,
    state_dir: Path | None = None,
    env: Mapping[str, str] | None = None,
    program: Sequence[str] = (*TIDEMILL, "up"),
) -> Iterator[System]:
    """The system with these pools and functions, up while the block runs."""
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder:
        state = state_dir or Path(folder) / "state"
        pools_file = Path(folder) / "pools.yaml"
        pools_file.write_text(yaml.safe_dump({"pools": pools}))
        environment = {**os.environ, "XDG_CONFIG_HOME": folder, **(env or {})}
        began = time.monotonic()
        with (Path(folder) / "up.log").open("wb") as output:
            process = subprocess.Popen(
                [*program, "--state-dir", str(state), "--pools", str(pools_file), *options],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                _wait_ready(process, Path(output.name))
                ready_s = time.monotonic() - began
                system = System(process, state, _status(state, environment), ready_s)
                client = system.client()
                for function in functions:
                    client.deploy(function)
                yield system
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(40)


def _wait_ready(process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until `up` says that it is ready."""
    deadline = time.monotonic() + 90
    while b"Ready." not in log.read_bytes():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("`tidemill up` is not ready:\n" + log.read_text(errors="replace")[-3000:])
        time.sleep(0.02)


def _status(state: Path, env: Mapping[str, str]) -> dict[str, Any]:
    argv = [*TIDEMILL, "status", "--json", "--state-dir", str(state)]
    done = subprocess.run(argv, env=dict(env), capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found
