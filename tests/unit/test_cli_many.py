"""Commands about many files or jobs: how many calls at once, and what is said when they end early."""

import json
import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import wait_until
from tests.support.cli import Tidemill, read, spawn
from tests.support.fake_gateway import FakeGateway, Fault, Handler

_AT_ONCE = 8


def posts(gateway: FakeGateway) -> int:
    return sum(seen.method == "POST" for seen in list(gateway.seen))


@contextmanager
def held(gateway: FakeGateway, after: int) -> Iterator[None]:
    """Keep every POST after so many without an answer while the block runs."""
    over = threading.Event()
    lock, count = threading.Lock(), 0

    def hold(handler: Handler) -> bool:
        nonlocal count
        if handler.command != "POST":
            return False
        with lock:
            count += 1
            late = count > after
        if late:
            over.wait(120)
            handler.drop()
        return late

    gateway.faults.append(hold)
    try:
        yield
    finally:
        gateway.faults.remove(hold)
        over.set()


def interrupted(gateway: FakeGateway, begun: int, *args: str) -> "subprocess.CompletedProcess[str]":
    """Run a command, and press Ctrl-C when the first eight calls are answered and `begun` have come."""
    with held(gateway, _AT_ONCE):
        process = spawn(*args)
        wait_until(lambda: posts(gateway) == begun, 30)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)  # the calls are held for longer: it does not wait for them
    assert "Traceback" not in err
    return subprocess.CompletedProcess(args, process.returncode, out, err)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    found = [tmp_path / f"it's {number}.txt" for number in range(20)]
    for path in found:
        path.write_text(path.name)
    return found


@pytest.fixture
def failed(gateway: FakeGateway) -> list[str]:
    ids = [gateway.submit("echo", b"", f"k{number}", "x", {})["id"] for number in range(20)]
    for job_id in ids:
        gateway.end(job_id, "failed", code="timeout", message="too long")
    return ids


def test_an_interrupted_submit_tells_what_was_sent_what_perhaps_and_what_not(
    gateway: FakeGateway, tidemill: Tidemill, files: list[Path]
) -> None:
    done = interrupted(gateway, 16, "submit", "echo", "-p", "n=3", *map(str, files))
    assert done.returncode == 130
    assert "8 of 20 files were submitted, 4 were not sent." in done.stderr
    (back,) = re.findall(r"Come back with: tidemill job wait (.+)$", done.stderr, re.MULTILINE)
    assert set(back.split()) == set(gateway.jobs)
    commands = re.findall(r"^  tidemill (submit .*)$", done.stderr, re.MULTILINE)
    assert len(commands) == 8
    for file, command in zip(files[8:16], commands, strict=True):
        assert command.endswith(f" --param n=3 -- echo {shlex.quote(str(file))}")


def test_repeating_what_was_perhaps_sent_gives_the_same_job(
    gateway: FakeGateway, tidemill: Tidemill, files: list[Path]
) -> None:
    done = interrupted(gateway, 16, "submit", "echo", *map(str, files))
    (command, *_) = re.findall(r"^  tidemill (submit .*)$", done.stderr, re.MULTILINE)
    before = set(gateway.jobs)
    ids = {tidemill(*shlex.split(command)).stdout for _ in range(2)}
    assert len(ids) == 1
    assert len(set(gateway.jobs) - before) == 1
    sent = [seen.headers["idempotency-key"] for seen in gateway.seen if seen.method == "POST"]
    assert sent.count(sent[-1]) == 3, "the key is that of the call that was cut off"


def test_an_interrupted_retry_of_many_says_how_far_it_came(gateway: FakeGateway, failed: list[str]) -> None:
    done = interrupted(gateway, 16, "job", "retry", "--all")
    assert done.returncode == 130
    assert "8 of 20 jobs were changed, 4 were not tried." in done.stderr
    assert {line.strip() for line in done.stderr.splitlines()} >= set(failed[::-1][8:16])


def test_a_submit_that_gets_no_answer_says_how_to_repeat_it(
    gateway: FakeGateway, tidemill: Tidemill, cat: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.cli.connect._RETRY_S", 0.0)

    def cut(handler: Handler) -> bool:
        handler.drop()
        return True

    gateway.faults.append(cut)
    result = tidemill("submit", "echo", cat)
    assert result.exit_code == 5
    assert re.search(rf"^  tidemill submit --key \w+ -- echo {cat}$", result.stderr, re.MULTILINE)
    assert "files were submitted" not in result.stderr


def test_a_service_that_was_never_reached_has_submitted_nothing(
    tidemill: Tidemill, cat: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMILL_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("tidemill.cli.connect._RETRY_S", 0.0)
    assert "--key" not in tidemill("submit", "echo", cat, cat).stderr


def test_jobs_are_retried_eight_at_once_and_no_more(
    gateway: FakeGateway, tidemill: Tidemill, failed: list[str]
) -> None:
    together, lock, now, most = threading.Barrier(4), threading.Lock(), 0, 0

    def count(handler: Handler) -> bool:
        nonlocal now, most
        if handler.command == "POST":
            with lock:
                now += 1
                most = max(most, now)
            together.wait(60)  # nobody goes on alone
            with lock:
                now -= 1
        return False

    gateway.faults.append(count)
    found = read(tidemill("job", "retry", "--all", "--json"))
    assert [job["id"] for job in found] == failed[::-1]
    assert {job["generation"] for job in found} == {2}
    assert most <= _AT_ONCE


def conflict(*ids: str) -> Fault:
    def refuse(handler: Handler) -> bool:
        match = re.fullmatch(r".*/jobs/(\w+)/retry", handler.path)
        if match is None or match[1] not in ids:
            return False
        handler.problem(409, "conflict", f"job {match[1]} is queued: only a job that is over can be retried", "Wait.")
        return True

    return refuse


def test_a_job_that_somebody_else_retried_first_is_no_error_of_a_retry_of_all(
    gateway: FakeGateway, tidemill: Tidemill, failed: list[str]
) -> None:
    gateway.faults.append(conflict(*failed[:2]))
    result = tidemill("job", "retry", "--all", "--json")
    assert {job["id"] for job in read(result)} == set(failed[2:])
    assert result.stderr == "Left alone, as somebody else has retried them since: 2 jobs.\n"


def test_a_job_that_is_not_over_is_an_error_of_a_retry_by_its_id(
    gateway: FakeGateway, tidemill: Tidemill, failed: list[str]
) -> None:
    gateway.faults.append(conflict(failed[0]))
    result = tidemill("job", "retry", *failed[:2])
    assert result.exit_code == 2
    assert "only a job that is over can be retried" in result.stderr
    assert gateway.jobs[failed[1]]["generation"] == 2


def test_an_input_that_changed_is_an_error_of_a_retry_of_all(
    gateway: FakeGateway, tidemill: Tidemill, failed: list[str]
) -> None:
    def refuse(handler: Handler) -> bool:
        if handler.command == "POST":
            handler.problem(409, "input_changed", "the input changed", "It is a job of its own.")
        return handler.command == "POST"

    gateway.faults.append(refuse)
    assert tidemill("job", "retry", "--all").exit_code == 2


def test_a_service_that_goes_away_is_told_of_once(
    gateway: FakeGateway, tidemill: Tidemill, failed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.cli.connect._RETRY_S", 0.0)

    def cut(handler: Handler) -> bool:
        if handler.command == "POST":
            handler.drop()
        return handler.command == "POST"

    gateway.faults.append(cut)
    result = tidemill("job", "retry", "--all")
    assert result.exit_code == 5
    assert result.stderr.count("Error:") == 1
    assert "0 of 20 jobs were changed, 12 were not tried." in result.stderr
    assert posts(gateway) == _AT_ONCE


def test_job_cancel_says_what_becomes_of_each(gateway: FakeGateway, tidemill: Tidemill) -> None:
    states = ("queued", "running", "committed", "succeeded", "failed", "cancelled")
    ids = {state: gateway.submit("echo", b"", state, "x", {})["id"] for state in states}
    for state, job_id in ids.items():
        gateway.jobs[job_id]["state"] = state
    result = tidemill("job", "cancel", *ids.values())
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        "Over before, and left as they are: 1 cancelled, 1 failed, 1 succeeded.",
        "Too late to cancel, as the end is being written already: 1 job.",
        "Still running, with processes that end within 2 s: 1 job.",
        "See the end with: tidemill job show ID",
    ]
    alone = tidemill("job", "cancel", ids["running"], "--json")
    assert f"See the end with: tidemill job show {ids['running']}\n" in alone.stderr
    assert json.loads(alone.stdout)[0]["state"] == "running"
    assert tidemill("job", "cancel", ids["queued"]).stderr == "Over before, and left as it is: 1 cancelled.\n"
