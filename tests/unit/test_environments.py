"""Virtual environments of functions, built from packages made here: no index and no network is needed."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import wait_until
from tidemill_workers.environments import Environment, EnvironmentBuilder, EnvironmentFailed
from tidemill_workers.environments.builder import _leads_elsewhere
from tidemill_workers.environments.errors import failure
from tidemill_workers.environments.installer import installer_environment

# A build backend without requirements: the wheel holds what the build saw in its environment. It waits for `go`.
BACKEND = """
import base64, hashlib, os, pathlib, time, zipfile

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    pathlib.Path({started!r}).touch()
    while not os.path.exists({go!r}):
        time.sleep(0.02)
    name = "seen-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w") as wheel:
        wheel.writestr("seen.py", f"environment = {{dict(os.environ)!r}}")
        wheel.writestr("seen-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: seen\\nVersion: 1.0\\n")
        wheel.writestr("seen-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("seen-1.0.dist-info/RECORD", "")
    return name
"""
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "seen"
version = "1.0"
"""
ENSURE = """
import sys, json
from pathlib import Path
from tidemill_workers.environments import EnvironmentBuilder
builder = EnvironmentBuilder(Path(sys.argv[1]))
found = builder.ensure("r1", Path(sys.argv[2]), on_line=lambda line: print(line, file=sys.stderr, flush=True))
print(json.dumps([str(found.path), found.built_s]))
"""


@pytest.fixture
def builder(tmp_path: Path) -> EnvironmentBuilder:
    return EnvironmentBuilder(tmp_path / "environments of agents")


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The SHA-256 of the wheel of a package `driftwood` 1.0, the only one that the installer can find."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    path = folder / "driftwood-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as target:
        target.writestr("driftwood.py", "colour = 'grey'\n")
        target.writestr("driftwood-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: driftwood\nVersion: 1.0\n")
        lines = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        target.writestr("driftwood-1.0.dist-info/WHEEL", lines)
        target.writestr(
            "driftwood-1.0.dist-info/entry_points.txt", "[console_scripts]\ndrift = driftwood:colour.upper\n"
        )
        target.writestr("driftwood-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def requirements(tmp_path: Path, wheel: str) -> Path:
    path = tmp_path / "requirements.txt"
    path.write_text(f"driftwood==1.0 --hash=sha256:{wheel}\n")
    return path


class SlowBuild:
    """A function's folder whose requirements are built from source, and that build waits for `go`."""

    def __init__(self, folder: Path) -> None:
        self.started, self.go = folder / "started", folder / "go"
        (folder / "seen").mkdir(parents=True)
        (folder / "seen" / "backend.py").write_text(BACKEND.format(started=str(self.started), go=str(self.go)))
        (folder / "seen" / "pyproject.toml").write_text(PROJECT)
        self.requirements = folder / "requirements.txt"
        self.requirements.write_text("./seen\n")


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowBuild]:
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    build = SlowBuild(tmp_path / "code")
    yield build
    build.go.touch()


def ask(environment: Environment, code: str) -> str:
    done = subprocess.run(
        [environment.python, "-I", "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


def folders(builder: EnvironmentBuilder) -> list[str]:
    return sorted(path.name for path in builder.root.iterdir() if path.is_dir())


def test_without_requirements_all_revisions_share_an_empty_environment(builder: EnvironmentBuilder) -> None:
    first = builder.ensure("r1", None)
    second = builder.ensure("r2", None)
    assert first.path == second.path
    assert first.built_s > 0
    assert second.built_s == 0
    names = json.loads(
        ask(first, "import importlib.metadata as m, json; print(json.dumps([d.name for d in m.distributions()]))")
    )
    assert names == []


def test_nothing_of_ours_can_be_imported_in_an_environment(builder: EnvironmentBuilder) -> None:
    environment = builder.ensure("r1", None)
    code = (
        "import importlib.util as u; print([n for n in ('tidemill', 'redis', 'celery', 'pydantic') if u.find_spec(n)])"
    )
    assert ask(environment, code) == "[]"
    assert ask(environment, "import sys; print(sys.prefix)") == str(environment.path)


def test_requirements_with_a_hash_are_installed_and_the_lines_are_shown(
    builder: EnvironmentBuilder, requirements: Path
) -> None:
    lines: list[str] = []
    environment = builder.ensure("r1", requirements, on_line=lines.append)
    assert ask(environment, "import driftwood; print(driftwood.colour)") == "grey"
    assert any("driftwood==1.0" in line for line in lines)


def test_a_script_of_a_package_runs_after_the_environment_was_moved_to_its_place(
    builder: EnvironmentBuilder, requirements: Path
) -> None:
    environment = builder.ensure("r1", requirements)
    done = subprocess.run([environment.path / "bin" / "drift"], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.strip() == "GREY"  # sys.exit of a text prints it


def test_equal_requirements_share_an_environment_and_other_ones_do_not(
    builder: EnvironmentBuilder, requirements: Path, tmp_path: Path
) -> None:
    same = tmp_path / "elsewhere.txt"
    same.write_bytes(requirements.read_bytes())
    other = tmp_path / "other.txt"
    other.write_text(requirements.read_text() + "# changed\n")
    first = builder.ensure("r1", requirements)
    assert builder.ensure("r2", same).path == first.path
    assert builder.ensure("r3", other).path != first.path
    assert builder.ensure("r4", requirements, no_deps=True).path != first.path


def test_a_wrong_hash_is_permanent_and_says_what_to_do(builder: EnvironmentBuilder, tmp_path: Path, wheel: str) -> None:
    path = tmp_path / "wrong.txt"
    path.write_text(f"driftwood==1.0 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(EnvironmentFailed) as caught:
        builder.ensure("r1", path)
    assert caught.value.permanent
    assert "wrong.txt" in caught.value.message
    assert "Make the lock file again" in caught.value.message
    assert wheel in caught.value.log_tail
    assert caught.value.log_tail in str(caught.value)
    assert folders(builder) == []


def test_a_version_that_does_not_exist_is_permanent(builder: EnvironmentBuilder, tmp_path: Path, wheel: str) -> None:
    path = tmp_path / "requirements.txt"
    path.write_text("driftwood==7.5\n")
    with pytest.raises(EnvironmentFailed, match=r"no versions fit together.*Check names and versions") as caught:
        builder.ensure("r1", path)
    assert caught.value.permanent
    assert "driftwood==7.5" in caught.value.log_tail


def test_a_line_that_is_no_requirement_is_permanent(builder: EnvironmentBuilder, tmp_path: Path, wheel: str) -> None:
    path = tmp_path / "requirements.txt"
    path.write_text("driftwood==1.0\n???\n")
    with pytest.raises(EnvironmentFailed, match="has a line that is no requirement") as caught:
        builder.ensure("r1", path)
    assert caught.value.permanent


def test_a_missing_requirements_file_is_permanent(builder: EnvironmentBuilder, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed, match=r"lost\.txt cannot be read: No such file.*deploy again") as caught:
        builder.ensure("r1", tmp_path / "lost.txt")
    assert caught.value.permanent


def test_an_index_that_does_not_answer_is_temporary(
    builder: EnvironmentBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "requirements.txt"
    path.write_text("driftwood==1.0\n")
    with pytest.raises(EnvironmentFailed, match=r"index could not be reached.*HTTPS_PROXY") as caught:
        builder.ensure("r1", path)
    assert not caught.value.permanent


def test_an_interpreter_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed, match=r"/no/such/python does not run"):
        EnvironmentBuilder(tmp_path, "/no/such/python").ensure("r1", None)


def test_words_of_package_names_do_not_make_a_failure_temporary() -> None:
    lines = [" + async-timeout==5.0", "  × No solution found when resolving dependencies:", "  certificate-tool==1"]
    assert failure("x", lines).permanent


def test_an_unknown_failure_is_temporary() -> None:
    assert not failure("x", ["error: something new"]).permanent


@pytest.mark.parametrize(
    ("line", "elsewhere"),
    [
        ("six==1.17.0 \\\n    --hash=sha256:ab", False),
        ("numpy>=2 ; python_version < '3.13'", False),
        ("--index-url https://index.example/simple", False),
        ("# see ./notes -r x", False),
        ("x @ https://files.example/x-1.0.whl", False),
        ("git+https://code.example/x", False),
        ("-r base.txt", True),
        ("-c limits.txt", True),
        ("-e .", True),
        ("./pkg", True),
        ("sub/pkg", True),
        ("x.whl", True),
        ("x @ file:///srv/x", True),
        ("x @ ../x", True),
        ("--find-links wheels", True),
    ],
)
def test_lines_that_lead_to_other_files_are_seen(line: str, elsewhere: bool) -> None:
    assert _leads_elsewhere(line.encode()) is elsewhere


def test_requirements_that_name_files_beside_them_are_built_per_revision(
    builder: EnvironmentBuilder, slow: SlowBuild
) -> None:
    slow.go.touch()
    first = builder.ensure("r1", slow.requirements)
    second = builder.ensure("r2", slow.requirements)
    assert first.path != second.path
    assert ask(second, "import seen; print('yes')") == "yes"


def test_a_build_from_source_sees_none_of_the_agents_secrets(
    builder: EnvironmentBuilder, slow: SlowBuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "tide-secret-1")
    monkeypatch.setenv("TIDEMILL_REDIS__URL", "redis://:tide-secret-2@localhost")
    slow.go.touch()
    environment = builder.ensure("r1", slow.requirements)
    seen = ask(environment, "import seen; print(seen.environment)")
    assert "PATH" in seen
    assert "tide-secret" not in seen
    assert "TIDEMILL" not in seen


def test_the_installer_keeps_proxy_index_and_cache() -> None:
    given = {"https_proxy": "p", "UV_DEFAULT_INDEX": "i", "HOME": "h", "UV_PYTHON": "x", "AWS_REGION": "r"}
    passed = installer_environment(given)
    assert {"https_proxy": "p", "UV_DEFAULT_INDEX": "i", "HOME": "h"}.items() <= passed.items()
    assert not {"UV_PYTHON", "AWS_REGION"} & passed.keys()


def test_two_processes_that_want_the_same_environment_build_it_once(
    builder: EnvironmentBuilder, slow: SlowBuild, tmp_path: Path
) -> None:
    def start(log: Path) -> subprocess.Popen[str]:
        with log.open("w") as target:
            arguments = [sys.executable, "-c", ENSURE, str(builder.root), str(slow.requirements)]
            return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=target, text=True)

    with start(tmp_path / "first.log") as first:
        wait_until(slow.started.exists, 30)
        slow.started.unlink()
        with start(tmp_path / "second.log") as second:
            wait_until(lambda: "waiting for it" in (tmp_path / "second.log").read_text(), 30)
            slow.go.touch()
            answers = [json.loads(process.communicate(timeout=60)[0]) for process in (first, second)]
    assert answers[0][0] == answers[1][0]
    assert answers[0][1] > 0
    assert answers[1][1] == 0
    assert not slow.started.exists()
    assert folders(builder) == [Path(answers[0][0]).name]


def test_threads_of_one_process_build_once_too(builder: EnvironmentBuilder, slow: SlowBuild) -> None:
    built: list[float] = []
    waiting = threading.Event()

    def note(line: str) -> None:
        if "waiting for it" in line:
            waiting.set()

    def ensure() -> None:
        built.append(builder.ensure("r1", slow.requirements, on_line=note).built_s)

    threads = [threading.Thread(target=ensure) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert waiting.wait(30)
    slow.go.touch()
    for thread in threads:
        thread.join(60)
    assert sorted(seconds > 0 for seconds in built) == [False, True]


def test_a_build_that_takes_too_long_is_ended_with_its_children(builder: EnvironmentBuilder, slow: SlowBuild) -> None:
    backend = slow.requirements.parent / "seen" / "backend.py"
    pid_file = slow.requirements.parent / "pid"
    write_pid = f"    pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid()))\n    pathlib.Path("
    backend.write_text(backend.read_text().replace("    pathlib.Path(", write_pid, 1))
    with pytest.raises(EnvironmentFailed, match=r"not ready after \d.* s\. Ask for fewer packages") as caught:
        builder.ensure("r1", slow.requirements, timeout_s=5)
    assert not caught.value.permanent
    wait_until(lambda: not Path(f"/proc/{int(pid_file.read_text())}").exists(), 10)
    assert folders(builder) == []


def test_a_waiting_process_gives_up_in_time(builder: EnvironmentBuilder, slow: SlowBuild) -> None:
    thread = threading.Thread(target=builder.ensure, args=("r1", slow.requirements))
    thread.start()
    wait_until(slow.started.exists, 30)
    with pytest.raises(EnvironmentFailed, match="building the same environment"):
        builder.ensure("r1", slow.requirements, timeout_s=0.2)
    slow.go.touch()
    thread.join(60)
    assert len(folders(builder)) == 1


def test_what_a_killed_build_left_is_removed_and_never_used(builder: EnvironmentBuilder, requirements: Path) -> None:
    environment = builder.ensure("r1", requirements)
    (environment.path / "tidemill-environment.json").unlink()
    (environment.path / "half").touch()
    left = builder.root / f".{environment.name}.0badcafe.partial"
    left.mkdir()
    again = builder.ensure("r1", requirements)
    assert again.built_s > 0
    assert not (again.path / "half").exists()
    assert folders(builder) == [again.name]


def test_an_environment_whose_interpreter_is_gone_is_built_again(
    builder: EnvironmentBuilder, requirements: Path
) -> None:
    environment = builder.ensure("r1", requirements)
    environment.python.unlink()
    environment.python.symlink_to("/no/such/python")
    assert builder.ensure("r1", requirements).built_s > 0
    assert ask(environment, "import driftwood; print(driftwood.colour)") == "grey"


def test_every_file_of_an_environment_can_be_read_by_other_users(tmp_path: Path, requirements: Path) -> None:
    before = os.umask(0o077)
    try:
        environment = EnvironmentBuilder(tmp_path / "shared").ensure("r1", requirements)
    finally:
        os.umask(before)
    assert stat.S_IMODE(environment.path.parent.stat().st_mode) == 0o755
    for path in [environment.path, *environment.path.rglob("*")]:
        wanted = 0o555 if path.is_dir() else 0o444
        assert path.is_symlink() or stat.S_IMODE(path.stat().st_mode) & wanted == wanted, path


def test_prune_removes_what_is_neither_kept_nor_used_lately(builder: EnvironmentBuilder, requirements: Path) -> None:
    kept = builder.ensure("r1", requirements)
    old = builder.ensure("r2", None)
    (builder.root / ".cafe.00000000.partial").mkdir()
    assert builder.prune() == []
    assert folders(builder) == sorted([kept.name, old.name])
    assert builder.prune({kept.name}, unused_s=0) == [old.name]
    assert folders(builder) == [kept.name]
    assert builder.ensure("r2", None).built_s > 0


def test_prune_leaves_alone_what_is_being_built(builder: EnvironmentBuilder, slow: SlowBuild) -> None:
    thread = threading.Thread(target=builder.ensure, args=("r1", slow.requirements))
    thread.start()
    wait_until(slow.started.exists, 30)
    assert builder.prune(unused_s=0) == []
    slow.go.touch()
    thread.join(60)
    assert ask(builder.ensure("r1", slow.requirements), "import seen; print('yes')") == "yes"
