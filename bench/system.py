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
from collections.abc import Iterator, Mapping
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
                [*TIDEMILL, "up", "--state-dir", str(state), "--pools", str(pools_file), *options],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = _status(process, state, environment, Path(output.name))
                system = System(process, state, status, time.monotonic() - began)
                client = system.client()
                for function in functions:
                    client.deploy(function)
                yield system
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(40)


def _status(process: subprocess.Popen[bytes], state: Path, env: Mapping[str, str], log: Path) -> dict[str, Any]:
    """Wait until `up` says that it is ready."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(log.read_text(errors="replace")[-3000:])
        if state.joinpath("runtime.json").exists() and b"ready" in log.read_bytes().lower():
            done = subprocess.run(
                [*TIDEMILL, "status", "--json", "--state-dir", str(state)],
                env=dict(env),
                capture_output=True,
                text=True,
            )
            if done.returncode == 0:
                found: dict[str, Any] = json.loads(done.stdout)
                return found
        time.sleep(0.02)
    raise RuntimeError("not ready after 90 s:\n" + log.read_text(errors="replace")[-3000:])
