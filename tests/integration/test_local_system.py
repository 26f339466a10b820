"""`tidemill up` as a whole: the embedded servers and a dummy service, as a process that is asked, killed, restarted."""

import base64
import contextlib
import http.client
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import minio
import psutil
import pytest
import redis

from tests.support import wait_until
from tidemill.local import commands
from tidemill.local.control import Control
from tidemill.local.errors import LocalError, NotRunning
from tidemill.local.ports import is_free
from tidemill.local.state import StateDir, profile_path
from tidemill.local.supervisor import Event, Service
from tidemill.local.system import Addresses, LocalSystem, Options, default_services, parse_store_url

ROOT = Path(__file__).resolve().parents[2]
SERVICES = ["valkey", "seaweed", "gateway"]


class Up:
    """One running system; `lines` are the events that it has printed."""

    def __init__(self, state_dir: Path, *flags: str) -> None:
        self.state_dir = state_dir
        self.output = state_dir.parent / f"{state_dir.name}.{os.urandom(3).hex()}.out"
        with self.output.open("wb") as output:
            argv = [sys.executable, "-m", "tests.support.up", str(state_dir), *flags]
            self.process = subprocess.Popen(argv, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.output.read_text().splitlines() if line.startswith("{")]

    def saw(self, what: str) -> bool:
        return any(line["what"] == what for line in self.lines)

    def ready(self) -> "Up":
        def up_or_ended() -> bool:
            return self.saw("up") or self.process.poll() is not None

        wait_until(up_or_ended, 40)
        assert self.saw("up"), self.output.read_text()
        return self

    def pids(self) -> list[int]:
        return [process["pid"] for process in commands.status(self.state_dir)["processes"]]


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def start(name: str = "a state dir", *flags: str) -> Up:
        started.append(Up(tmp_path / name, *flags))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.terminate()
        one.process.wait(30)


def all_gone(pids: list[int]) -> bool:
    """None of them runs (one that has ended and was not waited for by its new parent does not run)."""
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                return False
    return True


def store(status: dict[str, Any]) -> minio.Minio:
    where = status["store"]
    address = where["endpoint"].removeprefix("http://")
    return minio.Minio(address, where["access_key"], where["secret_key"], secure=False, region=where["region"])


def read(status: dict[str, Any], bucket: str, key: str) -> bytes:
    with contextlib.closing(store(status).get_object(bucket, key)) as answer:
        return bytes(answer.read())


def test_data_and_secrets_outlive_down_and_up_even_on_other_ports(up: Callable[..., Up]) -> None:
    first = up().ready()
    before = commands.status(first.state_dir)
    assert set(before) == {"url", "token", "redis", "flower", "store", "processes"}
    assert [(process["name"], process["state"]) for process in before["processes"]] == [
        (name, "running") for name in SERVICES
    ]
    assert json.loads(profile_path().read_text()) == {"url": before["url"], "token": before["token"]}
    with redis.Redis.from_url(before["redis"]) as connection:
        connection.set("kept", "yes")
    store(before).make_bucket("kept")
    store(before).put_object("kept", "a/ü", io.BytesIO(b"content"), 7)
    pids = first.pids()
    ports = StateDir(first.state_dir).ports()

    assert commands.down(first.state_dir) == first.process.pid
    assert first.process.wait(5) == 0
    assert all_gone(pids)
    assert all(is_free(port) for port in ports.values())
    assert not profile_path().exists()
    with pytest.raises(NotRunning):
        commands.status(first.state_dir)

    # Another program may have taken a port in between; nothing that was stored depends on one.
    StateDir(first.state_dir).keep_ports({name: port for name, port in ports.items() if name == "gateway"})
    after = commands.status(up().ready().state_dir)
    assert (after["url"], after["token"]) == (before["url"], before["token"])
    assert after["store"]["endpoint"] != before["store"]["endpoint"]
    with redis.Redis.from_url(after["redis"]) as connection:
        assert connection.get("kept") == b"yes"
    assert read(after, "kept", "a/ü") == b"content"
    store(after).put_object("kept", "b", io.BytesIO(b"content"), 7)


def test_a_second_up_on_the_same_folder_is_refused_and_disturbs_nothing(up: Callable[..., Up]) -> None:
    first = up().ready()
    second = up()
    assert second.process.wait(20) == 2
    assert second.lines == [{"what": "refused", "pid": first.process.pid}]
    assert len(first.pids()) == len(SERVICES)


def test_when_up_is_killed_everything_dies_and_the_next_up_finds_the_data(up: Callable[..., Up]) -> None:
    first = up().ready()
    status = commands.status(first.state_dir)
    with redis.Redis.from_url(status["redis"]) as connection:
        connection.set("kept", "yes")
        connection.execute_command("WAITAOF", 1, 0, 5000)
    store(status).make_bucket("kept")
    store(status).put_object("kept", "a", io.BytesIO(b"content"), 7)
    control = StateDir(first.state_dir).runtime()["control"]
    agent = Control(control).start("agent", [sys.executable, "-c", "import time; time.sleep(600)"], dict(os.environ))
    pids = first.pids()
    assert len(pids) == len(SERVICES) + 1
    assert agent["pid"] in pids
    ports = StateDir(first.state_dir).ports()

    first.process.send_signal(signal.SIGKILL)
    first.process.wait(5)
    wait_until(lambda: all_gone(pids), 5)
    assert all(is_free(port) for port in ports.values())

    again = commands.status(up().ready().state_dir)
    assert again["store"] == status["store"]
    assert not Path(control).parent.exists()
    with redis.Redis.from_url(again["redis"]) as connection:
        assert connection.get("kept") == b"yes"
    assert read(again, "kept", "a") == b"content"


@pytest.mark.parametrize("name", SERVICES)
def test_a_killed_child_comes_back_at_the_same_address(up: Callable[..., Up], name: str) -> None:
    running = up().ready()
    before = commands.status(running.state_dir)
    pid = next(process["pid"] for process in before["processes"] if process["name"] == name)
    os.kill(pid, signal.SIGKILL)

    def back() -> bool:
        return [line["what"] for line in running.lines if line.get("name") == name].count("ready") == 2

    wait_until(back, 30)
    restarted = next(line for line in running.lines if line["what"] == "restarting")
    assert (restarted["name"], restarted["status"], restarted["pause_s"]) == (name, -9, 0.2)
    after = commands.status(running.state_dir)
    assert {key: after[key] for key in ("url", "redis", "store")} == {
        key: before[key] for key in ("url", "redis", "store")
    }
    with redis.Redis.from_url(after["redis"]) as connection:
        assert connection.ping()
    assert store(after).list_buckets() is not None


def test_a_service_that_cannot_start_fails_the_start_and_leaves_nothing(up: Callable[..., Up]) -> None:
    failed = up("s", "--fail")
    assert failed.process.wait(40) == 1
    (last,) = [line for line in failed.lines if line["what"] == "failed"]
    assert "gateway did not start" in last["text"]
    assert "the dummy has a reason" in last["text"]
    assert all_gone([line["pid"] for line in failed.lines if line["what"] == "started"])
    assert not profile_path().exists()


def test_two_systems_run_at_once_and_each_ends_alone(up: Callable[..., Up]) -> None:
    one, two = up("one"), up("two")
    one.ready(), two.ready()
    first, second = (commands.environment(each.state_dir) for each in (one, two))
    assert first.keys() == second.keys()
    assert not {name for name in first if first[name] == second[name]} - {"AWS_REGION"}
    commands.down(one.state_dir)
    assert two.pids()
    commands.down(two.state_dir)
    assert not profile_path().exists()


def test_ctrl_c_ends_it_in_the_middle_of_the_start(up: Callable[..., Up]) -> None:
    starting = up()
    wait_until(lambda: starting.saw("started"), 20)
    starting.process.send_signal(signal.SIGINT)
    assert starting.process.wait(20) == 0
    assert not starting.saw("up")
    assert "Traceback" not in starting.output.read_text()
    assert all_gone([line["pid"] for line in starting.lines if line["what"] == "started"])


def test_no_secret_stands_in_a_command_line(up: Callable[..., Up]) -> None:
    running = up().ready()
    secrets = json.loads((running.state_dir / "credentials.json").read_text())
    hidden = [secrets[name] for name in secrets if name not in ("access_key", "flower_user")]
    for pid in running.pids():
        line = " ".join(psutil.Process(pid).cmdline())
        assert line
        assert not [secret for secret in hidden if secret in line]


def test_exports_can_be_read_by_a_shell(up: Callable[..., Up]) -> None:
    running = up().ready()
    exports = commands.env_exports(running.state_dir)
    out = subprocess.run(
        ["sh", "-c", f"{exports} env"], capture_output=True, text=True, check=True, env={"PATH": os.environ["PATH"]}
    ).stdout
    for name, value in commands.environment(running.state_dir).items():
        assert f"{name}={value}\n" in out


DETACHED = """
import sys
from pathlib import Path
from tests.support.up import broken, compose
from tidemill.local import commands
from tidemill.local.errors import LocalError
from tidemill.local.system import LocalSystem, Options
folder = Path(sys.argv[1])
make = lambda: LocalSystem(Options(folder), compose=broken if "--fail" in sys.argv else compose)
try:
    print(commands.up_detached(make, folder)["url"])
except LocalError as error:
    sys.exit(f"{error.error_code}: {error}")
"""


def detached(folder: Path, *flags: str) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-c", DETACHED, str(folder), *flags]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_detached_it_returns_when_ready_and_outlives_its_starter(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    done = detached(folder)
    assert done.returncode == 0, done.stderr
    try:
        status = commands.status(folder)
        assert status["url"] == done.stdout.strip()
        again = detached(folder)
        assert (again.returncode, again.stderr.split(":")[0]) == (1, "already_running")
    finally:
        pid = commands.down(folder)
    assert all_gone([pid])


def test_detached_a_failed_start_is_told_to_the_starter(tmp_path: Path) -> None:
    done = detached(tmp_path / "s", "--fail")
    assert done.returncode == 1
    assert done.stderr.startswith("start_failed: gateway did not start")
    assert "the dummy has a reason" in done.stderr
    with pytest.raises(NotRunning):
        commands.down(tmp_path / "s")


def test_a_store_address_is_taken_apart_and_a_bad_one_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_store_url("https://AK:s%2Fk@minio.example:9000?region=eu-1") == (
        "https://minio.example:9000",
        "eu-1",
        "AK",
        "s/k",
    )
    with pytest.raises(LocalError, match="access key"):
        parse_store_url("http://127.0.0.1:9000")
    for bad in ("127.0.0.1:9000", "s3://bucket", "http://h/path"):
        with pytest.raises(LocalError, match="address of a store"):
            parse_store_url(bad)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "A")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "B")
    assert parse_store_url("http://127.0.0.1:9000") == ("http://127.0.0.1:9000", "us-east-1", "A", "B")


def flower_status(port: int, path: str, headers: dict[str, str]) -> int:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("GET", path, headers=headers)
        return connection.getresponse().status


def test_flower_starts_with_a_password_that_no_command_line_shows(valkey_url: str, tmp_path: Path) -> None:
    told: list[Event] = []

    def only_flower(addresses: Addresses, env: Mapping[str, str]) -> list[Service]:
        return [service for service in default_services(addresses, env) if service.name == "flower"]

    def ask(addresses: dict[str, Any]) -> None:
        where = urlsplit(addresses["flower"])
        assert where.port is not None
        pid = next(event.pid for event in told if event.what == "ready")
        assert where.password not in " ".join(psutil.Process(pid).cmdline())
        login = base64.b64encode(f"{where.username}:{where.password}".encode()).decode()
        answers.append(flower_status(where.port, "/api/tasks", {}))
        answers.append(flower_status(where.port, "/api/tasks", {"Authorization": f"Basic {login}"}))
        os.kill(os.getpid(), signal.SIGTERM)

    answers: list[int] = []
    # With servers of one's own, none is embedded.
    options = Options(tmp_path / "s", redis_url=f"{valkey_url}/0", store_url="http://key:secret@127.0.0.1:9")
    LocalSystem(options, compose=only_flower, tell=told.append).run(on_ready=ask)
    assert answers == [401, 200]
    assert {event.name for event in told} == {"flower"}
