"""The commands of the local system, with the real one: up, status, env, work, doctor, down."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import wait_until

Tidemill = Callable[..., "subprocess.CompletedProcess[str]"]

# What only the extras bring. A bare installation has none of it.
_EXTRAS = ["celery", "redis", "fastapi", "pycurl", "minio", "structlog", "pydantic_settings", "uvicorn", "flower"]
_BARE = f"import sys; sys.modules.update(dict.fromkeys({_EXTRAS!r})); from tidemill.cli import main; main()"


def _run(env: dict[str, str], *argv: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, *argv], env=env, capture_output=True, text=True, timeout=150)


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    home = tmp_path_factory.mktemp("home")
    folders = {f"XDG_{name}_HOME": str(home / name.lower()) for name in ("CONFIG", "STATE", "CACHE")}
    return {**os.environ, **folders, "HOME": str(home)}


@pytest.fixture(scope="module")
def tidemill(environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tidemill]:
    pools = tmp_path_factory.mktemp("files") / "pools.yaml"
    pools.write_text("pools:\n  - {name: cpu, slots: 2, price: {usd_per_hour: 0.25}}\n")
    started = _run(environ, "-m", "tidemill", "up", "-d", "--pools", str(pools), "--json")
    try:
        assert started.returncode == 0, started.stderr
        assert set(json.loads(started.stdout)) == {"url", "token", "redis", "flower", "store"}
        yield lambda *args: _run(environ, "-m", "tidemill", *map(str, args))
    finally:
        _run(environ, "-m", "tidemill", "down")


def _json(done: "subprocess.CompletedProcess[str]") -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_second_up_says_so_and_ends_with_2(tidemill: Tidemill) -> None:
    second = tidemill("up", "-d")
    assert second.returncode == 2
    assert "already up" in second.stderr
    assert "tidemill down" in second.stderr


def test_status_and_env_name_the_same_system(tidemill: Tidemill) -> None:
    status = _json(tidemill("status", "--json"))
    assert set(status) == {"url", "token", "redis", "flower", "store", "processes"}
    assert {"valkey", "seaweed", "gateway", "placement", "flower"} <= {p["name"] for p in status["processes"]}
    exports = dict(line.removeprefix("export ").split("=", 1) for line in tidemill("env").stdout.splitlines())
    assert exports["TIDEMILL_URL"] == status["url"]
    assert exports["AWS_ENDPOINT_URL"] == status["store"]["endpoint"]


def test_doctor_finds_everything_in_order(tidemill: Tidemill) -> None:
    found = {entry["name"]: entry for entry in _json(tidemill("doctor", "--json"))}
    for name in ("local system", "gateway", "ledger", "store", "pools", "flower", "uv"):
        assert found[name]["state"] == "ok", found[name]
    assert found["isolation"]["state"] in {"ok", "warning"}


def test_work_goes_from_a_bare_installation_to_a_result_and_back(
    tidemill: Tidemill, environ: dict[str, str], tmp_path: Path
) -> None:
    def bare(*args: object) -> "subprocess.CompletedProcess[str]":
        return _run(environ, "-c", _BARE, *map(str, args))

    folder = tmp_path / "greet"
    assert bare("function", "init", "greet", "--folder", folder).returncode == 0
    spec = folder / "function.yaml"
    spec.write_text(spec.read_text().replace("# trigger", "trigger").replace("# output", "output"))
    deployed = bare("function", "deploy", folder)
    assert deployed.returncode == 0, deployed.stderr
    odd = tmp_path / 'o"d%2F\n+é.txt'
    odd.write_bytes(b"one\ntwo\n")
    result = _json(bare("run", "greet", odd, "--timeout", "100s"))
    assert (result["bytes"], result["lines"]) == (8, 2)
    assert result["greeting"].startswith("Hello, o")

    assert _json(bare("upload", odd, "inbox/greet", "--json"))[0]["key"] == f"greet/{odd.name}"

    def dropped() -> list[Any]:
        found = _json(bare("job", "list", "--json", "--state", "succeeded"))
        return [job for job in found if job["input"]["bucket"] == "inbox"]

    (job,) = wait_until(dropped, 60)
    assert job["input"]["key"] == f"greet/{odd.name}"
    saved = bare("job", "results", job["id"], "--out", tmp_path / "out")
    assert saved.returncode == 0, saved.stderr
    (path,) = (tmp_path / "out").iterdir()
    assert json.loads(path.read_bytes())["bytes"] == 8
    assert bare("doctor").returncode == 0


def test_after_down_nothing_is_there(tidemill: Tidemill) -> None:
    assert tidemill("down").returncode == 0
    gone = tidemill("status")
    assert gone.returncode == 5
    assert "tidemill up -d" in gone.stderr
    assert tidemill("job", "list").returncode == 5
