"""Nothing that a function starts outlives its runner, and no runner outlives its agent."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.runners import RunnerBench, is_alive, processes_with
from tests.support.waiting import wait_until
from tidemill_workers.agent.runners import Outcome, RunnerStartFailed

# A daemon as in the books: two forks, a session of its own, streams closed; and one that just ignores signals.
DAEMONS = """
    import os, signal, subprocess, sys, time

    def daemons():
        subprocess.Popen(["sleep", "600"])
        subprocess.Popen(["sh", "-c", "trap '' TERM HUP INT; sleep 600; sleep 600"], start_new_session=True)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.closerange(0, 5000)
                time.sleep(600)
            os._exit(0)
        time.sleep(0.2)
        print("ready")
"""
# The interpreter's lock is held for ever: no other thread of the function's process runs.
BUSY = {
    "python": "while True: pass",
    "c": "import re; re.match(r'(a+)+$', 'a' * 60 + 'b')",
    "stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
    "sleep": "time.sleep(600)",
}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[RunnerBench]:
    with RunnerBench(tmp_path) as bench:
        yield bench


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[str]:
    """A value in the environment of all processes of the test's runners."""
    mark = f"mark-{os.getpid()}-{tmp_path.name}"
    yield mark
    for pid in processes_with(mark):
        os.kill(pid, signal.SIGKILL)


def _source(busy: str) -> str:
    return f"{DAEMONS}\n    def run(file, ctx):\n        daemons()\n        {BUSY[busy]}\n"


@pytest.mark.parametrize("busy", BUSY)
def test_a_timeout_ends_the_function_and_all_that_it_started(bench: RunnerBench, mark: str, busy: str) -> None:
    runner = bench.started(_source(busy), env={"TM_MARK": mark})
    outcome = bench.run(runner, timeout_s=1.5)
    assert outcome.error is not None
    assert (outcome.kind, outcome.error.code) == ("timeout", "timeout")
    assert outcome.error.log_tail == "ready"
    assert not runner.alive
    assert processes_with(mark) == []


def test_a_cancel_that_the_function_does_not_heed_ends_it_after_the_grace(bench: RunnerBench, mark: str) -> None:
    runner = bench.started(_source("c"), env={"TM_MARK": mark})
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(bench.run(runner)))
    thread.start()
    wait_until(lambda: bench.seen.lines("stdout") == ["ready"])
    assert runner.cancel(grace_s=0.3)
    thread.join(10)
    assert outcomes[0].kind == "cancelled"
    assert processes_with(mark) == []


def test_a_slow_receiver_of_lines_does_not_delay_the_end_of_the_function(bench: RunnerBench, mark: str) -> None:
    runner = bench.started(_source("python"), env={"TM_MARK": mark})
    let_go = threading.Event()
    outcomes: list[Outcome] = []

    def receive(stream: str, line: str) -> None:
        assert let_go.wait(30)

    def work() -> None:
        outcomes.append(runner.run(bench.task(timeout_s=1.5), receive, lambda *_: None))

    thread = threading.Thread(target=work)
    thread.start()
    wait_until(lambda: processes_with(mark))
    wait_until(lambda: not processes_with(mark))
    let_go.set()
    thread.join(10)
    assert outcomes[0].kind == "timeout"


def test_a_daemon_lives_as_long_as_its_runner_and_no_longer(bench: RunnerBench, mark: str) -> None:
    runner = bench.started(f"{DAEMONS}\n    def run(file, ctx):\n        daemons()\n", env={"TM_MARK": mark})
    assert bench.run(runner).kind == "succeeded"
    assert runner.alive
    assert len(processes_with(mark)) >= 5
    runner.stop()
    assert processes_with(mark) == []


def test_a_function_that_crashes_leaves_nothing(bench: RunnerBench, mark: str) -> None:
    source = f"{DAEMONS}\n    def run(file, ctx):\n        daemons()\n        os._exit(9)\n"
    runner = bench.started(source, env={"TM_MARK": mark})
    assert bench.run(runner).kind == "crashed"
    assert processes_with(mark) == []


def test_a_load_that_does_not_end_is_ended(bench: RunnerBench, mark: str) -> None:
    runner = bench.runner("print('loading')\nwhile True: pass", env={"TM_MARK": mark}, load_timeout_s=1.0)
    with pytest.raises(RunnerStartFailed) as caught:
        runner.start()
    assert (caught.value.code, caught.value.permanent, caught.value.log_tail) == ("load_timeout", False, "loading")
    assert processes_with(mark) == []


def test_a_killed_guard_takes_the_function_with_it(bench: RunnerBench) -> None:
    runner = bench.started("import time\ndef run(file, ctx):\n    print('ready')\n    time.sleep(600)")
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(bench.run(runner)))
    thread.start()
    wait_until(lambda: bench.seen.lines("stdout") == ["ready"])
    pid = runner.pid
    assert pid is not None
    guard = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(guard, signal.SIGKILL)
    thread.join(10)
    assert outcomes[0].kind == "crashed"
    wait_until(lambda: not is_alive(pid), 2)


def test_a_stop_waits_for_the_job_within_its_grace(bench: RunnerBench) -> None:
    runner = bench.started("import time\ndef run(file, ctx):\n    print('ready')\n    time.sleep(0.3)\n    return 1")
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(bench.run(runner)))
    thread.start()
    wait_until(lambda: bench.seen.lines("stdout") == ["ready"])
    runner.stop(grace_s=10)
    thread.join(10)
    assert outcomes[0].kind == "succeeded"
    assert not runner.alive


AGENT = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.support.runners import RunnerBench
bench = RunnerBench(Path({folder!r}))
runner = bench.started({source!r}, env={{"TM_MARK": {mark!r}}})
runner.run(bench.task(timeout_s=600), lambda stream, line: print(line, flush=True), lambda *_: None)
"""


@pytest.mark.parametrize("busy", BUSY)
def test_a_killed_agent_takes_its_runners_and_their_children_with_it(tmp_path: Path, mark: str, busy: str) -> None:
    root = str(Path(__file__).resolve().parent.parent.parent)
    script = AGENT.format(root=root, folder=str(tmp_path / "agent"), source=_source(busy), mark=mark)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as agent:
        try:
            assert agent.stdout is not None
            assert agent.stdout.readline() == "ready\n"
            assert len(processes_with(mark)) >= 5
        finally:
            agent.kill()
        agent.wait()
        wait_until(lambda: processes_with(mark) == [], 2)
        wait_until(lambda: processes_with(str(tmp_path)) == [], 2)  # the guards: their command line has the path
