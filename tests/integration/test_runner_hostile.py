"""A function that writes into the runner's own pipe: its job ends, its agent goes on."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.runners import RunnerBench
from tidemill_workers.agent.runner_log import JobLog
from tidemill_workers.agent.runners import Outcome, Runner

HUGE = "9" * 400
DEEP = "[" * 900 + "]" * 900
# `say` writes what it is given to each pipe that the process has, the one for replies among them.
SOURCE = """
    import os, stat, struct

    def frame(body):
        return struct.pack(">I", len(body)) + body

    def say(data):
        for fd in [int(name) for name in os.listdir("/proc/self/fd")]:
            try:
                if fd > 2 and stat.S_ISFIFO(os.fstat(fd).st_mode):
                    os.write(fd, data)
            except OSError:
                pass
"""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[RunnerBench]:
    with RunnerBench(tmp_path) as bench:
        yield bench


def _ended(bench: RunnerBench, runner: Runner, timeout_s: float = 20) -> Outcome:
    """The outcome of one job; fails instead of waiting for ever."""
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(bench.run(runner, timeout_s=timeout_s)), daemon=True)
    thread.start()
    thread.join(30)
    assert outcomes, "the job's time is over, and it has not ended"
    return outcomes[0]


def _saying(bench: RunnerBench, *bodies: str) -> Outcome:
    lines = "".join(f"        say(frame({body.encode()!r}))\n" for body in bodies)
    return _ended(bench, bench.started(f"{SOURCE}\n    def run(file, ctx):\n{lines}        return 1\n"))


@pytest.mark.parametrize(
    ("said", "seen"),
    [
        (f'"done": {HUGE}', None),
        (f'"done": -{HUGE}', None),
        ('"done": NaN', None),
        ('"done": 1e400', None),
        ('"done": 1e300', None),
        (f'"done": {DEEP}', None),
        ('"done": "1"', None),
        ('"total": 2', None),
        (f'"done": 1, "total": {HUGE}', (1.0, None, None)),
        ('"done": 1, "total": Infinity', (1.0, None, None)),
        (f'"done": 1, "unit": {DEEP}', (1.0, None, None)),
        ('"done": 1, "unit": "\\ud800"', (1.0, None, "?")),
        ('"done": 1, "unit": "' + "x" * 100 + '"', (1.0, None, "x" * 64)),
    ],
)
def test_progress_that_is_no_number_is_dropped(bench: RunnerBench, said: str, seen: object) -> None:
    outcome = _saying(bench, f'{{"type": "progress", {said}}}')
    assert outcome.kind == "succeeded"
    assert bench.seen.progress[-1:] == ([] if seen is None else [seen])
    json.dumps(bench.seen.progress, ensure_ascii=False, allow_nan=False).encode()


def test_a_function_may_report_what_it_could_not_compute(bench: RunnerBench) -> None:
    outcome = bench.outcome("def run(file, ctx):\n    ctx.progress(float('nan'), float('inf'), 'x')\n    return 1")
    assert outcome.kind == "succeeded"
    assert bench.seen.progress == []


@pytest.mark.parametrize("line", [HUGE, DEEP, "null", '"\\ud800"', '{"a": NaN}'])
def test_lines_of_any_kind_leave_a_log_that_can_be_kept(bench: RunnerBench, line: str) -> None:
    outcome = _saying(bench, f'{{"type": "log", "line": {line}}}', '{"type": "log", "line": "the last"}')
    assert outcome.kind == "succeeded"
    assert bench.seen.lines("log")[-1] == "the last"
    json.dumps(bench.seen.log, ensure_ascii=False).encode()


@pytest.mark.parametrize("delay", [HUGE, f"-{HUGE}", "NaN", "Infinity", "1e300", "true", '"5"', DEEP])
def test_an_error_with_absurd_values_is_an_error_like_others(bench: RunnerBench, delay: str) -> None:
    odd = f'"code": "no\\u0000such code", "message": {DEEP}, "traceback": {HUGE}'
    outcome = _saying(bench, f'{{"type": "error", "kind": "temporary", {odd}, "delay_s": {delay}}}')
    assert (outcome.kind, outcome.error and outcome.error.code) == ("temporary", "function_error")
    assert outcome.delay_s is None or 0 <= outcome.delay_s <= 30 * 86400


@pytest.mark.parametrize(
    "code", ["no_capacity", "superseded", "function_deleted", "cancelled", "timeout", "input_gone"]
)
def test_a_function_cannot_claim_what_only_others_can_say(bench: RunnerBench, code: str) -> None:
    outcome = _saying(bench, f'{{"type": "error", "kind": "failed", "code": "{code}", "message": "so it is"}}')
    assert (outcome.kind, outcome.error and outcome.error.code) == ("failed", "function_error")
    assert outcome.error and outcome.error.message == "so it is"


@pytest.mark.parametrize("kind", [DEEP, HUGE, '{"a": 1}'])
def test_an_error_of_no_known_kind_is_a_failure(bench: RunnerBench, kind: str) -> None:
    outcome = _saying(bench, f'{{"type": "error", "kind": {kind}}}')
    assert (outcome.kind, outcome.error and outcome.error.code) == ("failed", "function_error")


@pytest.mark.parametrize(
    "data",
    ["frame(b'no JSON')", "frame(b'[' * 100_000)", "frame(b'[]')", "frame(b' ' * 2**20 + b'{}')", "b'\\xff' * 4"],
)
def test_what_is_no_message_ends_the_runner(bench: RunnerBench, data: str) -> None:
    source = f"{SOURCE}\n    import time\n    def run(file, ctx):\n        say({data})\n        time.sleep(600)\n"
    runner = bench.started(source)
    outcome = _ended(bench, runner)
    assert (outcome.kind, outcome.error and outcome.error.code) == ("crashed", "protocol_violated")
    assert not runner.alive


def test_a_message_that_nobody_can_handle_ends_the_runner(bench: RunnerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(JobLog, "line", fail)
    runner = bench.started(
        "import time\ndef run(file, ctx):\n    ctx.log.info('x')\n    ctx.progress(1)\n    time.sleep(600)"
    )
    outcome = _ended(bench, runner)
    assert (outcome.kind, outcome.error and outcome.error.code) == ("crashed", "protocol_violated")
    assert not runner.alive


def test_a_flood_of_messages_does_not_keep_the_time_limit_away(bench: RunnerBench) -> None:
    source = """
    def run(file, ctx):
        block = frame(b'{"type": "log"}') * 50_000
        while True:
            say(block)
    """
    outcome = _ended(bench, bench.started(SOURCE + source), timeout_s=1.5)
    assert (outcome.kind, outcome.error and outcome.error.code) == ("timeout", "timeout")
