"""Each command against a small gateway: what it prints, its exit code, and what it says to do next."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.support.cli import Tidemill, read
from tests.support.fake_gateway import FakeGateway
from tidemill.cli.group import SECTIONS, root


def test_every_command_has_help_with_an_example_or_subcommands(tidemill: Tidemill) -> None:
    for section in SECTIONS.values():
        for name, (target, _) in section.items():
            if not target:
                continue
            result = tidemill(name, "--help")
            assert result.exit_code == 0
            assert "Example" in result.stdout, name


def _commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    with click.Context(root) as ctx:
        for section in SECTIONS.values():
            for name in section:
                command = root.get_command(ctx, name)
                assert command is not None
                inner = command.commands if isinstance(command, click.Group) else {"": command}
                yield from ((tuple(filter(None, (name, second))), one) for second, one in inner.items())


def test_every_command_takes_json_but_the_services() -> None:
    for names, command in _commands():
        if SECTIONS["Services"].keys().isdisjoint(names):
            assert any("--json" in param.opts for param in command.params), names


def test_every_command_takes_the_short_form_of_help(tidemill: Tidemill) -> None:
    for args in ((), ("job",), *(names for names, _ in _commands())):
        short, long = tidemill(*args, "-h"), tidemill(*args, "--help")
        assert short.exit_code == 0, args
        assert short.stdout == long.stdout
        assert "-h, --help" in short.stdout


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
        ["job", "show", "0" * 32],
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
        "for name in ('structlog', 'pydantic_settings', 'redis', 'celery', 'pycurl', 'fastapi', 'minio'):\n"
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
