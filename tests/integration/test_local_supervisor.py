"""The keeper of processes, with small Python programs in place of servers."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import pytest

import tidemill.local.supervisor as supervisor_module
from tidemill.local.control import Control, ControlServer, remove_leftover
from tidemill.local.errors import LocalError, NotRunning, StartFailed
from tidemill.local.ready import NotReady
from tidemill.local.supervisor import Event, Service, Supervisor

ENV: Mapping[str, str] = {"PATH": os.environ["PATH"]}
SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-S",
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)",
]


class Told(list[Event]):
    def of(self, name: str) -> list[str]:
        return [event.what for event in self if event.name == name]


async def until(condition: Callable[[], object], deadline_s: float = 10.0) -> None:
    async with asyncio.timeout(deadline_s):
        while not condition():
            await asyncio.sleep(0.01)


def ready_when(condition: Callable[[], bool]) -> Callable[[], None]:
    def check() -> None:
        if not condition():
            raise NotReady("not yet")

    return check


def test_what_is_meant_for_first_starts_is_gone_once_the_service_has_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = tmp_path / "starts"
    program = f"import os, time; open({str(starts)!r}, 'a').write(os.environ.get('GIVEN', '-')); time.sleep(60)"

    async def scenario(settled_s: float) -> str:
        monkeypatch.setattr("tidemill.local.supervisor._SETTLED_S", settled_s)
        supervisor = Supervisor(tmp_path, Told().append)
        env = {**ENV, "GIVEN": "+"}
        service = Service("one", [sys.executable, "-c", program], env, once=frozenset({"GIVEN"}))
        starts.unlink(missing_ok=True)
        await supervisor.start([service])
        for number in (1, 2):
            await until(lambda number=number: starts.exists() and len(starts.read_text()) == number)
            (info,) = supervisor.services()
            assert info.pid is not None
            os.kill(info.pid, signal.SIGKILL)
        await until(lambda: len(starts.read_text()) == 3)
        await supervisor.stop()
        return starts.read_text()

    assert asyncio.run(scenario(0.0)) == "+--"
    assert asyncio.run(scenario(60.0)) == "+++", "nobody knows how far it came"


def test_services_start_after_what_they_need_and_end_before_it(tmp_path: Path) -> None:
    told, flag = Told(), tmp_path / "flag"

    async def scenario() -> None:
        supervisor = Supervisor(tmp_path, told.append)
        services = [
            Service("second", SLEEP, ENV, needs=("first",)),
            Service("first", SLEEP, ENV, ready=ready_when(flag.exists)),
        ]
        starting = asyncio.create_task(supervisor.start(services))
        await until(lambda: told.of("first") == ["started"])
        assert told.of("second") == []
        flag.touch()
        await starting
        assert [(info.name, info.state) for info in supervisor.services()] == [
            ("second", "running"),
            ("first", "running"),
        ]
        await supervisor.stop()

    asyncio.run(scenario())
    assert [(event.name, event.what) for event in told] == [
        ("first", "started"),
        ("first", "ready"),
        ("second", "started"),
        ("second", "ready"),
        ("second", "stopped"),
        ("first", "stopped"),
    ]


def test_a_killed_service_comes_back_and_the_event_says_how_it_ended(tmp_path: Path) -> None:
    told = Told()

    async def scenario() -> None:
        supervisor = Supervisor(tmp_path, told.append)
        await supervisor.start([Service("one", SLEEP, ENV)])
        for round_number in (1, 2):
            pid = supervisor.services()[0].pid
            assert pid is not None
            os.kill(pid, 9)
            await until(lambda expected=round_number: told.of("one").count("ready") == expected + 1)  # type: ignore[misc]
            assert supervisor.services()[0].pid not in (None, pid)
        await supervisor.stop()

    asyncio.run(scenario())
    restarts = [event for event in told if event.what == "restarting"]
    assert [(event.status, event.pause_s) for event in restarts] == [(-9, 0.2), (-9, 0.4)]


def test_a_service_that_only_a_new_start_can_help_gets_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "_LOOK_S", 0.05)
    told = Told()
    room = tmp_path / "room"
    program = [sys.executable, "-S", "-c", "import time; print('no room', flush=True); time.sleep(600)"]

    def broken(log: str) -> str | None:
        if "no room" not in log or not room.exists():
            return None
        room.unlink()
        return "its disk was full"

    async def scenario() -> None:
        supervisor = Supervisor(tmp_path, told.append)
        await supervisor.start([Service("one", program, ENV, broken=broken)])
        await until(lambda: "no room" in (tmp_path / "one.log").read_text())
        pid = supervisor.services()[0].pid
        room.touch()
        await until(lambda: told.of("one").count("ready") == 2)
        assert supervisor.services()[0].pid not in (None, pid)
        await supervisor.stop()

    asyncio.run(scenario())
    assert [event.detail for event in told if event.what == "unready"] == ["its disk was full"]
    assert told.of("one") == ["started", "ready", "unready", "restarting", "started", "ready", "stopped"]


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import sys; print('no such thing'); sys.exit(3)", "it ended with status 3"),
        ("import time; print('no such thing', flush=True); time.sleep(600)", "not ready after 1.5 s: not yet"),
    ],
    ids=["it ends", "it never serves"],
)
def test_a_first_start_that_fails_says_why_and_shows_the_log(tmp_path: Path, program: str, reason: str) -> None:
    async def scenario() -> None:
        supervisor = Supervisor(tmp_path, Told().append)
        service = Service("one", [sys.executable, "-c", program], ENV, ready=ready_when(lambda: False), start_s=1.5)
        try:
            await supervisor.start([Service("other", SLEEP, ENV), service])
        finally:
            await supervisor.stop()
            assert [info.pid for info in supervisor.services()] == [None, None]

    with pytest.raises(StartFailed) as failed:
        asyncio.run(scenario())
    assert reason in str(failed.value)
    assert "no such thing" in str(failed.value)


def test_a_program_that_does_not_exist_is_a_failed_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        supervisor = Supervisor(tmp_path, Told().append)
        try:
            await supervisor.start([Service("one", ["/nowhere/at-all"], ENV, ready=ready_when(lambda: False))])
        finally:
            await supervisor.stop()

    with pytest.raises(StartFailed, match="No such file"):
        asyncio.run(scenario())


def test_a_service_that_ignores_the_signal_ends_with_its_whole_group(tmp_path: Path) -> None:
    program = f"import subprocess, time; subprocess.Popen({SLEEP!r}); exec({STUBBORN[3]!r})"

    async def scenario() -> list[psutil.Process]:
        supervisor = Supervisor(tmp_path, Told().append)
        log = tmp_path / "one.log"
        ready = ready_when(lambda: b"deaf" in log.read_bytes())
        service = Service("one", [sys.executable, "-c", program], ENV, ready=ready, stop_s=0.2)
        await supervisor.start([Service("quick", SLEEP, ENV), service])
        process = psutil.Process(supervisor.services()[1].pid)
        family = [process, *process.children()]
        assert len(family) == 2
        await supervisor.stop()
        return family

    family = asyncio.run(scenario())
    psutil.wait_procs(family, timeout=5)
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in family)


def test_tasks_start_and_stop_by_name_through_the_socket(tmp_path: Path) -> None:
    told = Told()

    async def scenario() -> None:
        supervisor = Supervisor(tmp_path, told.append)
        await supervisor.start([Service("kept", SLEEP, ENV)])
        server = ControlServer(supervisor)
        await server.open()
        control = Control(server.address)
        ask = asyncio.to_thread
        folder = Path(server.address.partition("#")[0]).parent
        assert oct(folder.stat().st_mode & 0o777) == "0o700"

        first = await ask(control.start, "cpu-1@cloud", SLEEP, {**ENV, "WHO": "me"})
        again = await ask(control.start, "cpu-1@cloud", SLEEP, ENV)
        assert (first["pid"], first["state"], first["exit"]) == (again["pid"], "running", None)
        assert psutil.Process(first["pid"]).environ()["WHO"] == "me"

        stranger = Control(server.address.replace("#", "#0"))
        with pytest.raises(LocalError, match="token is wrong"):
            await ask(stranger.start, "theirs", SLEEP, ENV)

        quitter = [sys.executable, "-c", "import sys; sys.exit(7)"]
        await ask(control.start, "quitter", quitter, ENV)
        await until(lambda: "ended" in told.of("quitter"))
        listed = {process["name"]: process for process in await ask(control.list)}
        assert (listed["quitter"]["state"], listed["quitter"]["exit"]) == ("exited", 7)
        assert told.of("quitter") == ["started", "ended"]

        assert (await ask(control.stop, "cpu-1@cloud", 5.0))["state"] == "stopping"  # type: ignore[index]
        await until(lambda: "ended" in told.of("cpu-1@cloud"))
        assert (await ask(control.stop, "cpu-1@cloud"))["exit"] == -15  # type: ignore[index]
        assert await ask(control.stop, "nobody") is None
        revived = await ask(control.start, "cpu-1@cloud", SLEEP, ENV)
        assert revived["pid"] != first["pid"]
        assert [service["name"] for service in await ask(control.services)] == ["kept"]

        for bad in ("kept", "../x", "", "a b"):
            with pytest.raises(LocalError):
                await ask(control.start, bad, SLEEP, ENV)
        await server.close()
        await supervisor.stop()
        assert not folder.exists()
        with pytest.raises(NotRunning):
            await ask(control.list)
        assert not psutil.pid_exists(revived["pid"])

    asyncio.run(scenario())


def test_a_deaf_task_is_killed_after_its_grace(tmp_path: Path) -> None:
    told = Told()

    async def scenario() -> int | None:
        supervisor = Supervisor(tmp_path, told.append)
        supervisor.start_task("deaf", STUBBORN, ENV)
        log = tmp_path / "tasks" / "deaf.log"
        await until(lambda: b"deaf" in log.read_bytes())
        supervisor.stop_task("deaf", 0.1)
        await until(lambda: "ended" in told.of("deaf"))
        return supervisor.tasks()[0].exit

    assert asyncio.run(scenario()) == -9


def test_only_our_own_leftover_folders_are_removed(tmp_path: Path) -> None:
    precious = tmp_path / "precious" / "control"
    precious.parent.mkdir()
    remove_leftover(f"{precious}#token")
    remove_leftover("")
    assert precious.parent.exists()
    ours = tmp_path / "tidemill-up-abc"
    ours.mkdir()
    remove_leftover(f"{ours}/control#token")
    assert not ours.exists()
