"""The real system: `tidemill up` with every process in its place, one for the tests of this folder."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import urllib3
from minio import Minio

from tests.support import wait_until
from tidemill import Client
from tidemill.errors import TidemillError

HERE = Path(__file__).parent
FUNCTIONS = HERE / "functions"
TIDEMILL = (sys.executable, "-P", "-m", "tidemill")


@dataclass
class Up:
    """A running system and the ways into it."""

    process: subprocess.Popen[bytes]
    state_dir: Path
    env: dict[str, str]
    status: dict[str, Any]

    @functools.cached_property
    def client(self) -> Client:
        return Client(self.status["url"], self.status["token"])

    @functools.cached_property
    def http(self) -> urllib3.PoolManager:
        return urllib3.PoolManager(maxsize=16)

    @functools.cached_property
    def s3(self) -> Minio:
        """Another client than our own."""
        store = self.status["store"]
        return Minio(
            urlsplit(store["endpoint"]).netloc,
            access_key=store["access_key"],
            secret_key=store["secret_key"],
            region=store["region"],
            secure=False,
            http_client=self.http,
        )

    def read(self, bucket: str, key: str) -> bytes:
        answer = self.s3.get_object(bucket, key)
        try:
            return answer.read()
        finally:
            answer.close()
            answer.release_conn()

    def cli(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run the command line against this system."""
        done = subprocess.run(
            [*TIDEMILL, *arguments],
            env={**self.env, "TIDEMILL_URL": self.status["url"], "TIDEMILL_TOKEN": self.status["token"]},
            capture_output=True,
            text=True,
            timeout=150,
        )
        if check:
            assert done.returncode == 0, done.stdout + done.stderr
        return done

    def processes(self) -> list[dict[str, Any]]:
        return json.loads(self.cli("status", "--json", "--state-dir", str(self.state_dir)).stdout)["processes"]

    def log_tail(self) -> str:
        texts = [
            f"== {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in self.state_dir.glob("logs/*")
        ]
        return "\n".join(texts)


def start(state_dir: Path, env: dict[str, str], *options: str) -> Up:
    log = state_dir.parent / f"{state_dir.name}.out"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*TIDEMILL, "up", "--state-dir", str(state_dir), "--pools", str(HERE / "pools.yaml"), *options],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    up = Up(process, state_dir, env, {})

    def ready() -> bool:
        assert process.poll() is None, log.read_text()
        done = up_status(env, state_dir)
        if done is None or any(row["state"] != "running" for row in done["processes"]):
            return False
        up.status = done
        with Client(done["url"], done["token"], retry_s=0) as client, contextlib.suppress(TidemillError):
            return client.pools() != []
        return False

    try:
        wait_until(ready, 60)
    except BaseException:
        stop(up)
        raise
    return up


def up_status(env: dict[str, str], state_dir: Path) -> dict[str, Any] | None:
    done = subprocess.run(
        [*TIDEMILL, "status", "--json", "--state-dir", str(state_dir)],
        env=env,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout) if done.returncode == 0 else None


def stop(up: Up) -> None:
    if up.status:
        up.client.close()
        up.http.clear()
    if up.process.poll() is None:
        up.process.send_signal(signal.SIGTERM)
        try:
            up.process.wait(30)
        except subprocess.TimeoutExpired:
            up.process.kill()
            up.process.wait()
            raise


@pytest.fixture(scope="session")
def up_env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    home = tmp_path_factory.mktemp("home")
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEMILL_", "AWS_"))}
    return {**env, "XDG_CONFIG_HOME": str(home / "config"), "XDG_STATE_HOME": str(home / "state")}


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory, up_env: dict[str, str]) -> Iterator[Up]:
    """One system for all tests of this folder, with the functions of `functions/`."""
    system = start(tmp_path_factory.mktemp("up") / "state dir", up_env)
    try:
        for folder in sorted(FUNCTIONS.iterdir()):
            system.client.deploy(folder)
        yield system
    finally:
        stop(system)
