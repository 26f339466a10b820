"""Functions that are a command."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.runners import RunnerBench, contents, processes_with
from tests.support.waiting import wait_until
from tidemill_workers.agent.runners import RunnerStartFailed


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[RunnerBench]:
    with RunnerBench(tmp_path) as bench:
        yield bench


def test_a_command_reads_its_job_from_the_environment_and_leaves_files(bench: RunnerBench) -> None:
    bench.write(
        "run.sh",
        'echo working; tr a-z A-Z < "$INPUT_FILE_PATH" > "$TMP_OUTPUT_DIR/out.txt"; env > $TMP_OUTPUT_DIR/env; pwd >&2',
    )
    runner = bench.started(command=("sh", "run.sh"), env={"MODE": "fast", "TIDEMILL_TOKEN": "never"})
    files = contents(bench.run(runner, content=b"hello", params={"a": 1}))
    assert files["out.txt"] == b"HELLO"
    assert bench.seen.lines("stdout") == ["working"]
    assert bench.seen.lines("stderr") == [str(bench.code)]
    env = dict(line.split("=", 1) for line in files["env"].decode().splitlines())
    assert {name: env[name] for name in ("STORAGE_OBJECT_KEY", "JOB_UUID", "OSCAR_SERVICE_NAME", "MODE", "LANG")} == {
        "STORAGE_OBJECT_KEY": "deep/a b.txt",
        "JOB_UUID": "job0",
        "OSCAR_SERVICE_NAME": "fn",
        "MODE": "fast",
        "LANG": "C.UTF-8",
    }
    assert json.loads(env["TIDEMILL_PARAMS"]) == {"a": 1}
    assert json.loads(env["EVENT"])["Records"][0]["s3"]["object"]["key"] == "deep/a b.txt"
    assert env["TMP_INPUT_DIR"] == os.path.dirname(env["TIDEMILL_INPUT_FILE"])
    assert env["RESOURCE_ID"]
    assert env["EVENT_TIME"].endswith("Z")
    assert "TIDEMILL_TOKEN" not in env
    assert files.keys() == {"out.txt", "env"}


@pytest.mark.parametrize(
    ("script", "kind", "code"),
    [
        ("exit 1", "failed", "command_failed"),
        ("exit 75", "temporary", "temporary_error"),
        ("kill -TERM $$", "failed", "command_killed"),
    ],
)
def test_the_exit_code_decides(bench: RunnerBench, script: str, kind: str, code: str) -> None:
    runner = bench.started(command=("sh", "-c", f"echo why; {script}"))
    for _ in range(2):
        outcome = bench.run(runner)
        assert outcome.error is not None
        assert (outcome.kind, outcome.error.code, outcome.error.log_tail) == (kind, code, "why")
    assert contents(bench.run(bench.started(command=("true",)))) == {}


def test_a_command_that_is_not_there_or_not_executable_is_a_permanent_failure_of_the_start(bench: RunnerBench) -> None:
    bench.write("plain.sh", "true")
    (bench.code / "plain.sh").chmod(0o644)
    for name, said in (("no-such-program", "no such program"), ("./plain.sh", "chmod")):
        with pytest.raises(RunnerStartFailed, match=said) as caught:
            bench.started(command=(name,))
        assert (caught.value.permanent, caught.value.code) == (True, "command_not_found")


def test_a_cancelled_command_gets_sigterm_first(bench: RunnerBench) -> None:
    import threading

    runner = bench.started(
        command=("sh", "-c", 'trap "echo bye; exit 0" TERM; echo ready; while :; do sleep 0.05; done')
    )
    kinds: list[str] = []
    thread = threading.Thread(target=lambda: kinds.append(bench.run(runner).kind))
    thread.start()
    wait_until(lambda: bench.seen.lines("stdout") == ["ready"])
    assert runner.cancel(grace_s=10)
    thread.join(10)
    assert kinds == ["cancelled"]
    assert bench.seen.lines("stdout") == ["ready", "bye"]
    assert runner.alive


def test_a_command_and_its_children_are_gone_after_a_timeout(bench: RunnerBench) -> None:
    mark = f"{os.getpid()}{bench.folder.name}"
    runner = bench.started(command=("sh", "-c", f"setsid sleep 600 & TM_MARK={mark} sleep 600"), env={"TM_MARK": mark})
    assert bench.run(runner, timeout_s=0.5).kind == "timeout"
    assert processes_with(mark) == []
