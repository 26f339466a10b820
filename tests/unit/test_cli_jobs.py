"""`tidemill job` against a small gateway."""

import json

import pytest

from tests.support.cli import Tidemill, read
from tests.support.fake_gateway import FakeGateway

NOBODY = "0" * 32  # the id of no job


def test_job_list_json_holds_every_job(gateway: FakeGateway, tidemill: Tidemill) -> None:
    for number in range(1100):
        gateway.submit("echo", b"", f"k{number}", "x", {})
    found = read(tidemill("job", "list", "--json"))
    assert len({entry["id"] for entry in found}) == 1100
    assert len(read(tidemill("job", "list", "--json", "--limit", 3))) == 3
    assert len(tidemill("job", "list").stdout.splitlines()) == 1100


@pytest.mark.parametrize("columns", [80, 100, 200])
def test_a_terminal_of_any_width_shows_whole_ids(
    gateway: FakeGateway, tidemill: Tidemill, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    job_id = gateway.submit("a-function-with-a-long-name", b"", "k", "a name that is long, too " * 4, {})["id"]
    monkeypatch.setattr("tidemill.cli.show.on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    for command in (("job", "list"), ("job", "cancel", job_id)):
        assert job_id in tidemill(*command).stdout


def test_a_narrow_terminal_shows_whole_reasons_and_leaves_out_what_job_show_has(
    gateway: FakeGateway, tidemill: Tidemill, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = gateway.submit("shrink-pictures", b"", "k", "pictures/2026/cat-0001.png", {})["id"]
    gateway.end(job_id, "failed", code="permanent_error", message="not a picture")
    monkeypatch.setattr("tidemill.cli.show.on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    head, *lines = tidemill("job", "list", "--state", "failed").stdout.strip().splitlines()
    assert head.split() == ["id", "function", "state", "input", "reason"]
    rows = [line for line in lines if line.strip() and not line.startswith(" ─")]
    starts = [head.index(name) for name in ("function", "state", "input", "reason")]
    columns = ["".join(row[a:b].strip() for row in rows) for a, b in zip(starts, [*starts[1:], None], strict=True)]
    assert columns == ["shrink-pictures", "failed", "pictures/2026/cat-0001.png", "permanent_error"]


def test_names_in_lines_are_one_line_and_in_json_unchanged(gateway: FakeGateway, tidemill: Tidemill) -> None:
    gateway.submit("echo", b"", "k", "a\nb\x1b[2J\u202eé", {})
    (line,) = tidemill("job", "list").stdout.splitlines()
    assert "a\\nb\\x1b[2J\\u202eé" in line
    assert read(tidemill("job", "list", "--json"))[0]["input"]["name"] == "a\nb\x1b[2J\u202eé"


def test_job_show_says_why_and_what_next(gateway: FakeGateway, tidemill: Tidemill) -> None:
    job = gateway.submit("echo", b"", "k", "x", {})
    candidate = {"pool": "gpu", "seconds_p50": 1.0, "usd": 0.1, "score": None, "excluded_because": "too dear"}
    job["placement"] = {"pool": "cpu", "reason": "cpu is cheapest", "candidates": [candidate]}
    gateway.end(job["id"], "failed", code="timeout", message="too long", traceback="line 1", hint="Give it more time.")
    text = tidemill("job", "show", job["id"]).stdout
    for expected in ("cpu is cheapest", "timeout: too long", "Give it more time.", "line 1", "too dear"):
        assert expected in text


def test_job_wait_reports_each_end(gateway: FakeGateway, tidemill: Tidemill) -> None:
    good, bad = (gateway.submit("echo", b"", key, "x", {})["id"] for key in ("a", "b"))
    gateway.end(good, "succeeded")
    assert tidemill("job", "wait", good).exit_code == 0
    gateway.end(bad, "failed", code="timeout", message="too long")
    result = tidemill("job", "wait", good, bad, "--json")
    assert result.exit_code == 1
    assert [entry["state"] for entry in json.loads(result.stdout)] == ["succeeded", "failed"]
    assert "too long" in result.stderr


def test_job_logs_and_following_them(gateway: FakeGateway, tidemill: Tidemill) -> None:
    job_id = gateway.submit("echo", b"", "k", "x", {})["id"]
    gateway.logs[job_id] = ["one", "\x1b[31mtwo"]
    assert tidemill("job", "logs", job_id).stdout == "one\n\\x1b[31mtwo\n"
    assert tidemill("job", "logs", "-f", job_id).stdout == "one\n\\x1b[31mtwo\n"
    assert read(tidemill("job", "logs", job_id, "--json"))["log"] == "one\n\x1b[31mtwo\n"


def test_job_logs_says_that_it_shows_the_last_attempt(tidemill: Tidemill) -> None:
    said = " ".join(tidemill("job", "logs", "--help").stdout.split())
    assert "the log of its last attempt. Of earlier ones `tidemill job show ID` has the error" in said


def test_job_ignored_says_why(gateway: FakeGateway, tidemill: Tidemill) -> None:
    assert tidemill("job", "ignored").stdout.endswith("\tinbox/a\\n/.hid\thidden name\n")
    assert read(tidemill("job", "ignored", "--json"))[0]["key"] == "a\n/.hid"


def test_job_cancel_and_retry_all(gateway: FakeGateway, tidemill: Tidemill) -> None:
    ids = [gateway.submit("echo", b"", key, "x", {})["id"] for key in ("a", "b", "c")]
    assert tidemill("job", "cancel", ids[0]).exit_code == 0
    assert gateway.jobs[ids[0]]["state"] == "cancelled"
    for job_id in ids[1:]:
        gateway.end(job_id, "failed", code="timeout", message="too long")
    found = read(tidemill("job", "retry", "--all", "--json"))
    assert {entry["id"] for entry in found} == set(ids[1:])
    assert {entry["generation"] for entry in found} == {2}
    result = tidemill("job", "cancel", NOBODY, ids[1])
    assert result.exit_code == 2
    assert gateway.jobs[ids[1]]["state"] == "cancelled", "one wrong id must not stop the others"


@pytest.mark.parametrize(
    "wrong", ["../../x", "4f0c", "A" * 32, "é" * 32, "", f"{NOBODY}0", f" {NOBODY}", f"{NOBODY}\n"]
)
@pytest.mark.parametrize("verb", ["show", "wait", "logs", "cancel", "retry", "results"])
def test_what_cannot_be_a_job_id_is_refused_before_any_call(
    gateway: FakeGateway, tidemill: Tidemill, verb: str, wrong: str
) -> None:
    good = gateway.submit("echo", b"", "k", "x", {})["id"]
    result = tidemill("job", verb, *([good] if verb in {"wait", "cancel", "retry"} else []), wrong)
    assert result.exit_code == 2
    assert f"{wrong!r} is no job id" in result.stderr
    assert "tidemill job list" in result.stderr
    assert gateway.seen == []


_FILTERED = (("job", "list"), ("job", "list", "--json"), ("job", "retry", "--all"))


@pytest.mark.parametrize("command", _FILTERED)
def test_a_reason_that_is_no_code_is_refused_with_the_nearest(
    gateway: FakeGateway, tidemill: Tidemill, command: tuple[str, ...]
) -> None:
    gateway.end(gateway.submit("echo", b"", "k", "x", {})["id"], "failed", code="timeout")
    near = tidemill(*command, "--reason", "permanant_eror")
    assert (near.exit_code, near.stdout) == (2, "")
    assert "Did you mean permanent_error?" in near.stderr
    far = tidemill(*command, "--reason", "zzz")
    assert (far.exit_code, far.stdout) == (2, "")
    assert "`tidemill job list --state failed`" in far.stderr


@pytest.mark.parametrize("command", _FILTERED)
def test_a_code_of_a_newer_service_is_no_wrong_reason(
    gateway: FakeGateway, tidemill: Tidemill, command: tuple[str, ...]
) -> None:
    job_id = gateway.submit("echo", b"", "k", "x", {})["id"]
    gateway.end(job_id, "failed", code="brand_new")
    result = tidemill(*command, "--reason", "brand_new")
    assert result.exit_code == 0
    assert job_id in result.stdout


@pytest.mark.parametrize("command", _FILTERED)
def test_an_empty_answer_says_when_there_is_no_such_function(
    gateway: FakeGateway, tidemill: Tidemill, command: tuple[str, ...]
) -> None:
    result = tidemill(*command, "--function", "ehco")
    assert result.exit_code == 0
    assert "there is no function ehco" in result.stderr
    assert "Did you mean echo?" in result.stderr
    known = tidemill(*command, "--function", "echo", "--reason", "timeout")
    assert "no function" not in known.stderr


def test_jobs_of_a_function_that_was_deleted_are_listed_without_a_word(
    gateway: FakeGateway, tidemill: Tidemill
) -> None:
    job_id = gateway.submit("gone", b"", "k", "x", {})["id"]
    result = tidemill("job", "list", "--function", "gone")
    assert job_id in result.stdout
    assert result.stderr == ""


def test_a_retry_of_all_says_when_there_is_none(gateway: FakeGateway, tidemill: Tidemill) -> None:
    result = tidemill("job", "retry", "--all", "--reason", "timeout")
    assert result.exit_code == 0
    assert "No failed job" in result.stderr
    assert read(tidemill("job", "retry", "--all", "--json")) == []


def test_a_terminal_shows_what_to_do_next_in_whole_words_and_whole_commands(
    gateway: FakeGateway, tidemill: Tidemill, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = gateway.submit("echo", b"", "k", "a  name " + "x" * 200, {})["id"]
    gateway.end(job_id, "failed", code="process_killed", message="The function's process was ended by SIGKILL")
    monkeypatch.setattr("tidemill.cli.show.on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    lines = tidemill("job", "show", job_id).stdout.splitlines()
    assert max(len(line) for line in lines if "xxx" not in line) <= 80
    assert sum(f"`tidemill job retry {job_id}`" in line for line in lines) == 1
    assert any("a  name" in line for line in lines)
