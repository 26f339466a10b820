"""Each command against a small gateway: what it prints, its exit code, and what it says to do next."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.support import wait_until
from tests.support.fake_gateway import TOKEN, FakeGateway, run_fake_gateway
from tidemill import Job
from tidemill.cli.group import SECTIONS, root

Tidemill = Callable[..., Result]


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGateway]:
    with run_fake_gateway() as running:
        monkeypatch.setenv("TIDEMILL_URL", running.url)
        monkeypatch.setenv("TIDEMILL_TOKEN", TOKEN)
        yield running


@pytest.fixture
def tidemill() -> Tidemill:
    return lambda *args: CliRunner().invoke(root, [str(arg) for arg in args], prog_name="tidemill")


@pytest.fixture
def cat(tmp_path: Path) -> Path:
    path = tmp_path / "cat.txt"
    path.write_bytes(b"meow")
    return path


def read(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_every_command_has_help_with_an_example_or_subcommands(tidemill: Tidemill) -> None:
    for section in SECTIONS.values():
        for name, (target, _) in section.items():
            if not target:
                continue
            result = tidemill(name, "--help")
            assert result.exit_code == 0
            assert "Example" in result.stdout, name


def test_every_command_takes_json() -> None:
    import click

    with click.Context(root) as ctx:
        for section in SECTIONS.values():
            for name, (target, _) in section.items():
                if target:
                    command = root.get_command(ctx, name)
                    assert command is not None
                    inner = command.commands.values() if isinstance(command, click.Group) else [command]
                    for one in inner:
                        assert any("--json" in param.opts for param in one.params), f"{name} {one.name}"


def test_run_prints_the_value(gateway: FakeGateway, tidemill: Tidemill, cat: Path) -> None:
    gateway.auto = lambda content: {"said": content.decode()}
    result = tidemill("run", "echo", cat, "--param", "n=3", "--param", "who=me")
    assert read(result) == {"said": "meow"}
    assert next(iter(gateway.jobs.values()))["params"] == {"n": 3, "who": "me"}


def test_run_of_several_files_gives_a_line_each(gateway: FakeGateway, tidemill: Tidemill, cat: Path) -> None:
    dog = cat.with_name("dog.txt")
    dog.write_bytes(b"wuff")
    gateway.auto = lambda content: content.decode()
    lines = tidemill("run", "echo", cat, dog).stdout.splitlines()
    assert lines == [f"{cat}\tsucceeded\tmeow", f"{dog}\tsucceeded\twuff"]
    found = read(tidemill("run", "echo", cat, dog, "--json"))
    assert [(entry["file"], entry["state"], entry["result"]) for entry in found] == [
        (str(cat), "succeeded", "meow"),
        (str(dog), "succeeded", "wuff"),
    ]


def test_run_saves_results_and_overwrites_nothing(
    gateway: FakeGateway, tidemill: Tidemill, cat: Path, tmp_path: Path
) -> None:
    gateway.auto = lambda content: 1
    out = tmp_path / "out"
    for expected in ("result.json", "result-2.json", "result-3.json"):
        assert tidemill("run", "echo", cat, "--out", out).stdout == f"{out / expected}\n"
    assert (out / "result.json").read_bytes() == b"1"


def test_run_of_several_files_saves_a_folder_per_input(
    gateway: FakeGateway, tidemill: Tidemill, cat: Path, tmp_path: Path
) -> None:
    gateway.auto = lambda content: content.decode()
    other = tmp_path / "sub" / "cat.txt"
    other.parent.mkdir()
    other.write_bytes(b"purr")
    out = tmp_path / "out"
    assert tidemill("run", "echo", cat, other, "--out", out).exit_code == 0
    assert (out / "cat.txt" / "result.json").read_bytes() == b'"meow"'
    assert (out / "cat-2.txt" / "result.json").read_bytes() == b'"purr"'


def test_hostile_output_names_stay_in_the_folder(gateway: FakeGateway, tidemill: Tidemill, tmp_path: Path) -> None:
    job = gateway.submit("echo", b"", "k", "x", {})
    names = ["../up", "/abs", "..", "a\nb", "\x1b[31m", ".ssh", "..\\win", "x" * 300]
    gateway.end(job["id"], "succeeded", {name: name.encode() for name in names})
    out = tmp_path / "deep" / "out"
    (tmp_path / "elsewhere").mkdir()
    out.mkdir(parents=True)
    (out / "_up").symlink_to(tmp_path / "elsewhere" / "target")
    result = tidemill("job", "results", job["id"], "--out", out)
    assert result.exit_code == 0, result.output
    saved = [path for path in out.iterdir() if not path.is_symlink()]
    assert sorted(path.read_bytes() for path in saved) == sorted(name.encode() for name in names)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "elsewhere"]
    assert "\x1b" not in result.output


def test_a_failed_job_ends_with_1_and_shows_why(gateway: FakeGateway, tidemill: Tidemill, cat: Path) -> None:
    gateway.auto = lambda content: ValueError("bad picture")
    result = tidemill("run", "echo", cat)
    assert result.exit_code == 1
    assert "bad picture" in result.stderr
    assert "Remote traceback" in result.stderr
    assert "Next: " in result.stderr
    assert result.stdout == ""


def test_a_wait_that_is_too_short_ends_with_3_and_cancels_nothing(
    gateway: FakeGateway, tidemill: Tidemill, cat: Path
) -> None:
    result = tidemill("run", "echo", cat, "--timeout", "50ms")
    assert result.exit_code == 3
    job_id = next(iter(gateway.jobs))
    assert f"tidemill job wait {job_id}" in result.stderr
    assert gateway.jobs[job_id]["state"] == "queued"


def test_wrong_use_ends_with_2(gateway: FakeGateway, tidemill: Tidemill, cat: Path) -> None:
    for args in (
        ["run", "echo", "/no/such"],
        ["run", "nope", cat],
        ["run", "echo", cat, "--param", "novalue"],
        ["submit", "echo", cat, cat, "--key", "k"],
        ["job", "show", "abc"],
        ["job", "retry"],
        ["job", "list", "--since", "yesterday-ish"],
        ["upload", cat, "/x"],
        ["bogus"],
    ):
        result = tidemill(*args)
        assert result.exit_code == 2, args
        assert result.stderr
        assert "Traceback" not in result.output


def test_a_wrong_token_ends_with_4(gateway: FakeGateway, tidemill: Tidemill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_TOKEN", "wrong")
    result = tidemill("job", "list")
    assert result.exit_code == 4
    assert "Next: Set TIDEMILL_TOKEN." in result.stderr


def test_a_service_that_is_away_ends_with_5(tidemill: Tidemill, monkeypatch: pytest.MonkeyPatch, cat: Path) -> None:
    monkeypatch.setenv("TIDEMILL_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("tidemill.cli.connect._RETRY_S", 0.0)
    for args in (["run", "echo", cat], ["upload", cat, "inbox/"], ["function", "list"]):
        result = tidemill(*args)
        assert result.exit_code == 5, result.output
        assert "tidemill up -d" in result.stderr


@pytest.mark.parametrize("command", [["gateway"], ["placement"], ["agent", "--pool", "near"]])
def test_a_command_that_lacks_its_extra_says_what_to_install(command: list[str]) -> None:
    """As after `pip install tidemill`: the packages of the services are not there."""
    bare = (
        "import sys\n"
        "for name in ('structlog', 'pydantic_settings', 'redis', 'celery', 'obstore', 'fastapi', 'minio'):\n"
        "    sys.modules[name] = None\n"
        "from tidemill.cli import main\n"
        "sys.argv = ['tidemill', *sys.argv[1:]]\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", bare, *command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert "is not installed" in done.stderr
    assert "Next: pip install 'tidemill[local]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_submit_prints_ids_and_a_key_makes_one_job(gateway: FakeGateway, tidemill: Tidemill, cat: Path) -> None:
    first, second = (tidemill("submit", "echo", cat, "--key", "k").stdout for _ in range(2))
    assert first == second == f"{next(iter(gateway.jobs))}\n"
    ids = tidemill("submit", "echo", *[cat] * 20).stdout.split()
    assert len(set(ids)) == 20


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


def test_an_interrupted_retry_of_many_says_how_far_it_came(
    gateway: FakeGateway, tidemill: Tidemill, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [gateway.submit("echo", b"", key, "x", {})["id"] for key in ("a", "b", "c")]
    for job_id in ids:
        gateway.end(job_id, "failed", code="timeout", message="too long")
    honest, calls = Job.retry, iter((False, True))

    def retry(job: Job) -> Job:
        if next(calls):
            raise KeyboardInterrupt
        return honest(job)

    monkeypatch.setattr(Job, "retry", retry)
    result = tidemill("job", "retry", "--all")
    assert result.exit_code != 0
    assert "1 of 3 jobs were changed" in result.stderr


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
    result = tidemill("job", "cancel", "nope", ids[1])
    assert result.exit_code == 2
    assert gateway.jobs[ids[1]]["state"] == "cancelled", "one wrong id must not stop the others"


def test_replay_says_what_it_found_and_what_it_would_do(gateway: FakeGateway, tidemill: Tidemill) -> None:
    looked = tidemill("replay", "echo", "--prefix", "old/", "--dry-run")
    assert looked.exit_code == 0
    assert "jobs that would start" in looked.stdout
    assert "inbox/old" in looked.stdout
    [seen] = [request for request in gateway.seen if request.path.endswith("/replay")]
    assert json.loads(seen.body) == {"prefix": "old/", "failed_only": False, "dry_run": True}


def test_replay_of_many_failed_jobs_asks_until_all_are_done(gateway: FakeGateway, tidemill: Tidemill) -> None:
    done = read(tidemill("replay", "echo", "--failed-only", "--json"))
    assert (done["found"], done["started"], done["complete"]) == (5, 3, True)
    assert done["ignored"] == {"empty": 2}
    assert done["examples"] == ["a", "b", "inbox/old"]
    sent = [json.loads(request.body) for request in gateway.seen if request.path.endswith("/replay")]
    assert [body.get("cursor") for body in sent] == [None, "a" * 32]


def test_upload_keeps_odd_names(gateway: FakeGateway, tidemill: Tidemill, tmp_path: Path) -> None:
    names = ["a+b.txt", "%2F.txt", "é.txt", "e\u0301.txt", "q'u\"o.txt", "new\nline.txt", "👩‍💻.txt", " lead", "-dash"]
    for name in names:
        (tmp_path / name).write_bytes(name.encode())
    result = tidemill("upload", "--json", "--", *[tmp_path / name for name in names], "inbox/in")
    assert {entry["key"] for entry in read(result)} == {f"in/{name}" for name in names}
    assert {key: content for key, content in gateway.objects.items() if "/" in key} == {
        f"inbox/in/{name}": name.encode() for name in names
    }


def test_upload_refuses_two_files_with_one_key(gateway: FakeGateway, tidemill: Tidemill, cat: Path) -> None:
    other = cat.parent / "sub" / "cat.txt"
    other.parent.mkdir()
    other.write_bytes(b"purr")
    result = tidemill("upload", cat, other, "inbox")
    assert result.exit_code == 2
    assert "same key" in result.stderr
    assert gateway.objects == {}


def test_function_init_writes_one_that_deploys(gateway: FakeGateway, tidemill: Tidemill, tmp_path: Path) -> None:
    folder = tmp_path / "hello-world"
    assert tidemill("function", "init", "hello-world", "--folder", folder).exit_code == 0
    assert tidemill("function", "init", "hello-world", "--folder", folder).exit_code == 2
    assert read(tidemill("function", "deploy", folder, "--json"))[0]["name"] == "hello-world"
    assert "hello-world" in tidemill("function", "list").stdout
    assert read(tidemill("function", "show", "hello-world", "--json"))["spec"]["handler"] == "hello_world:hello_world"
    assert tidemill("function", "delete", "hello-world").exit_code == 0
    assert "hello-world" not in gateway.functions


def test_the_written_function_works(tmp_path: Path, tidemill: Tidemill, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidemill import Context, File

    tidemill("function", "init", "greet", "--folder", tmp_path / "greet")
    monkeypatch.syspath_prepend(tmp_path / "greet")
    import greet  # type: ignore[import-not-found]

    (tmp_path / "in.txt").write_bytes(b"a\nb\n")
    assert greet.greet(File(tmp_path / "in.txt"), Context()) == {"greeting": "Hello, in.txt!", "bytes": 4, "lines": 2}


def test_a_wrong_function_file_is_refused_with_its_line(
    gateway: FakeGateway, tidemill: Tidemill, tmp_path: Path
) -> None:
    (tmp_path / "function.yaml").write_text("name: hello\nhandlr: hello:hello\n")
    result = tidemill("function", "deploy", tmp_path)
    assert result.exit_code == 2
    assert f"{tmp_path / 'function.yaml'}:2" in result.stderr
    assert "handler" in result.stderr
    assert gateway.seen == []


def test_pools(gateway: FakeGateway, tidemill: Tidemill, tmp_path: Path) -> None:
    file = tmp_path / "pools.yaml"
    file.write_text("pools:\n  - {name: cpu, slots: 2, price: {usd_per_hour: 0.25}}\n")
    assert read(tidemill("pool", "apply", file, "--json"))[0]["name"] == "cpu"
    assert tidemill("pool", "list").stdout.split("\t")[0] == "cpu"
    assert "$0.25" in tidemill("pool", "list").stdout
    assert read(tidemill("pool", "drain", "cpu", "--json"))["draining"] is True
    assert read(tidemill("pool", "resume", "cpu", "--json"))["draining"] is False
    assert tidemill("pool", "show", "cpu").exit_code == 0
    assert tidemill("pool", "delete", "cpu").exit_code == 0
    assert gateway.pools == {}


def test_doctor_names_what_is_wrong_and_the_remedy(gateway: FakeGateway, tidemill: Tidemill, tmp_path: Path) -> None:
    result = tidemill("doctor", "--json", "--state-dir", tmp_path)
    assert result.exit_code == 5
    found = {entry["name"]: entry for entry in json.loads(result.stdout)}
    assert found["gateway"]["state"] == "ok"
    assert found["ledger"]["state"] == "ok"
    assert found["store"] == {
        "name": "store",
        "state": "failed",
        "detail": "it is away",
        "remedy": found["store"]["remedy"],
    }
    assert found["store"]["remedy"]
    assert found["pools"]["state"] == "warning"
    assert (found["events"]["state"], found["events"]["detail"]) == ("warning", "no event within 10 s")
    assert "webhook" in found["events"]["remedy"]
    assert (found["records"]["state"], "pools/cpu.json" in found["records"]["detail"]) == ("warning", True)
    assert found["disk"]["detail"].endswith(str(tmp_path))
    assert {"uv", "isolation", "flower", "ports"} <= set(found)


def test_doctor_works_when_nothing_runs(tidemill: Tidemill, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIDEMILL_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("tidemill.cli.connect._RETRY_S", 0.0)
    result = tidemill("doctor", "--state-dir", tmp_path)
    assert result.exit_code == 5
    states = {line.split("\t")[1]: line.split("\t")[0] for line in result.stdout.splitlines()}
    assert states["gateway"] == "failed"
    assert states["local system"] == "skipped"


def test_the_local_commands_say_when_nothing_is_up(tidemill: Tidemill, tmp_path: Path) -> None:
    for command in ("status", "env", "down"):
        result = tidemill(command, "--state-dir", tmp_path)
        assert result.exit_code == 5, command
        assert "Next: Start it with `tidemill up -d`" in result.stderr


def test_up_refuses_wrong_files_before_it_starts_anything(tidemill: Tidemill, tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "function.yaml").write_text("name: F\n")
    result = tidemill("up", "--state-dir", tmp_path / "state", "--functions", tmp_path)
    assert result.exit_code == 2
    assert "function.yaml:1" in result.stderr
    assert not (tmp_path / "state").exists()


def _spawn(*args: str) -> "subprocess.Popen[str]":
    argv = [sys.executable, "-m", "tidemill", *args]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)


def test_ctrl_c_detaches_and_says_how_to_come_back(gateway: FakeGateway, cat: Path) -> None:
    process = _spawn("run", "echo", str(cat))
    wait_until(lambda: any(seen.query.get("wait") for seen in list(gateway.seen)), 30)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    job_id = next(iter(gateway.jobs))
    assert process.returncode == 130
    assert f"Come back with: tidemill job wait {job_id}" in err
    assert "Traceback" not in err
    assert gateway.jobs[job_id]["state"] == "queued"


def test_watch_uploads_what_is_new(gateway: FakeGateway, tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_bytes(b"old")
    process = _spawn("watch", str(tmp_path), "inbox/w", "--interval", "0.1")
    lines: list[str] = []
    assert process.stderr is not None
    assert process.stdout is not None
    assert process.stderr.readline().startswith("Watching")
    reading = threading.Thread(target=lambda: lines.extend(process.stdout or []))
    reading.start()
    (tmp_path / ".hidden").write_bytes(b"no")
    (tmp_path / "new.txt").write_bytes(b"new")
    wait_until(lambda: lines, 30)
    process.send_signal(signal.SIGINT)
    process.wait(20)
    reading.join()
    process.stdout.close()
    process.stderr.close()
    assert lines == ["inbox/w/new.txt\n"]
    assert [key for key in gateway.objects if key.startswith("inbox")] == ["inbox/w/new.txt"]


def test_a_reader_that_leaves_is_no_error(gateway: FakeGateway) -> None:
    for number in range(3000):
        gateway.submit("echo", b"", f"k{number}", "a long enough name", {})
    process = _spawn("job", "list")
    assert process.stdout is not None
    assert process.stdout.readline()
    process.stdout.close()
    process.wait(30)
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
