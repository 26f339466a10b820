"""What a function cannot reach."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.runners import RunnerBench, contents
from tidemill_workers.agent.runner_files import make_work_dir, readable_roots
from tidemill_workers.agent.runners import describe_isolation
from tidemill_workers.runner import landlock

needs_landlock = pytest.mark.skipif(landlock.abi() < 1, reason="the kernel has no Landlock")
SYSTEM_PYTHON = Path("/usr/bin/python3")


def _others_reach(path: Path) -> bool:
    return path.exists() and all(above.stat().st_mode & 0o001 for above in (path.resolve(), *path.resolve().parents))


PUBLIC = (SYSTEM_PYTHON, Path(tempfile.gettempdir()), Path("/proc"), Path("/dev"), Path("/etc"))
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(_others_reach, PUBLIC)),
    reason=f"needs root, and other users who can reach {', '.join(map(str, PUBLIC))}",
)

ATTEMPTS = """
    import ctypes, glob, os, signal, socket, sys
    from pathlib import Path

    def tried(action):
        try:
            return repr(action())[:200]
        except Exception as error:
            return type(error).__name__

    def status(name):
        return [line.split()[1] for line in open("/proc/self/status") if line.startswith(name + ":")][0]

    def descriptors():
        names = [n for n in os.listdir("/proc/self/fd") if int(n) < 900]
        return [n for n in names if os.path.lexists(f"/proc/self/fd/{n}")]  # without that of the listing

    def run(file, ctx):
        shared = f"/dev/shm/tidemill-test-{os.getpid()}"
        agent, secret = ctx.params["agent"], ctx.params["secret"]
        attempts = {
            "environ": lambda: open(f"/proc/{agent}/environ", "rb").read(),
            "memory": lambda: open(f"/proc/{agent}/mem", "rb"),
            "descriptors": lambda: [os.open(f"/proc/{agent}/fd/{n}", 0) for n in os.listdir(f"/proc/{agent}/fd")],
            "root": lambda: os.listdir(f"/proc/{agent}/root"),
            "guard": lambda: open(f"/proc/{os.getppid()}/environ", "rb").read(),
            "trace": lambda: 1 / (ctypes.CDLL(None).ptrace(16, agent, 0, 0) + 1),
            "signal": lambda: os.kill(agent, 0),
            "signal_guard": lambda: os.kill(os.getppid(), 0),
            "file": lambda: open(secret).read(),
            "folder": lambda: os.listdir(os.path.dirname(secret)),
            "shadow": lambda: open("/etc/shadow").read(),
            "tmp": lambda: open("/tmp/tidemill-test-write", "w"),
            "code": lambda: open(Path(__file__).with_name("new.py"), "w"),
            "our_code": lambda: open(Path(sys.modules["_tidemill_runner"].__file__), "a"),
            "disk": lambda: open([path for path in glob.glob("/dev/*d[a-z]") + glob.glob("/dev/nvme*")][0], "rb"),
            "mknod": lambda: os.mknod(os.environ["HOME"] + "/disk", 0o60600, os.makedev(8, 0)),
            "chown": lambda: os.chown(os.environ["HOME"], 1, 1),
        }
        return {
            "uid": os.getuid(),
            "groups": os.getgroups(),
            "no_new_privs": status("NoNewPrivs"),
            "capabilities": [status(name) for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")],
            "environment": sorted(os.environ),
            "open": sorted(os.readlink(f"/proc/self/fd/{n}").split(":")[0] for n in descriptors()),
            "stdin": os.readlink("/proc/self/fd/0"),
            "core": __import__("resource").getrlimit(4),
            "can": {
                "home": tried(lambda: Path.home().joinpath("x").write_text("x")),
                "temporary": tried(lambda: __import__("tempfile").TemporaryFile()) != "PermissionError",
                "shared_memory": tried(lambda: open(shared, "w").close() or os.unlink(shared)),
                "shell": os.system("true"),
                "certificates": tried(lambda: os.listdir("/etc/ssl/certs") and None),
                "passwd": tried(lambda: open("/etc/passwd").close()),
            },
            "attempts": {name: tried(action) for name, action in attempts.items()},
        }
"""
REFUSED = {"PermissionError", "FileNotFoundError", "ZeroDivisionError", "ProcessLookupError"}


def _attempt(bench: RunnerBench, secret_dir: Path) -> dict[str, Any]:
    secret_dir.mkdir(exist_ok=True)
    secret = secret_dir / "secret"
    secret.write_text("the secret")
    secret.chmod(0o600)
    os.environ["TM_TEST_SECRET"] = "the secret"
    try:
        runner = bench.started(ATTEMPTS)
        params = {"agent": os.getpid(), "secret": str(secret)}
        found: dict[str, Any] = json.loads(contents(bench.run(runner, params=params))["result.json"])
    finally:
        del os.environ["TM_TEST_SECRET"]
    return found


def _assert_shut_in(found: dict[str, Any]) -> None:
    attempts = found.pop("attempts")
    if landlock.abi() < 6 and found["uid"] == os.getuid():
        del attempts["signal"], attempts["signal_guard"]  # an older Landlock leaves signals to the same user free
    if attempts["disk"] == "IndexError":
        del attempts["disk"]  # there is none
    assert {name: said for name, said in attempts.items() if said not in REFUSED} == {}
    assert "the secret" not in json.dumps(found)
    assert found["no_new_privs"] == "1"
    if os.geteuid() == 0:
        assert {int(mask, 16) for mask in found["capabilities"]} == {0}
    assert found["core"] == [0, 0]
    assert found["stdin"] == "/dev/null"
    names = {"HOME", "LANG", "PATH", "TIDEMILL_FUNCTION", "TIDEMILL_REVISION", "TIDEMILL_VERSION", "TMPDIR"}
    assert set(found["environment"]) - {"LC_CTYPE"} == names
    # stdin, stdout and stderr; what our own files use has high numbers
    assert found["open"] == ["/dev/null", "pipe", "pipe"]
    del found["can"]["certificates"]  # not for everybody on every system
    assert found["can"] == {
        "home": "1",
        "temporary": True,
        "shared_memory": "None",
        "shell": 0,
        "passwd": "None",
    }


@needs_landlock
def test_a_function_reaches_no_secret_of_the_agent_and_can_do_its_work(tmp_path: Path) -> None:
    with RunnerBench(tmp_path / "bench") as bench:
        found = _attempt(bench, tmp_path / "state")
    if os.access("/etc/ssl/certs", os.R_OK):
        assert found["can"]["certificates"] == "None"
    _assert_shut_in(found)


@needs_landlock
@needs_root
def test_a_root_agent_runs_functions_as_another_user_where_that_one_can_reach_the_interpreter(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="tidemill-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with RunnerBench(folder / "bench", SYSTEM_PYTHON) as bench:
            found = _attempt(bench, tmp_path / "state")
            isolation = bench.started().isolation
    assert isolation is not None
    assert isolation.user
    assert isolation.missing == ()
    assert found["uid"] >= 61184
    assert found["groups"] == []
    _assert_shut_in(found)


@needs_root
def test_the_other_user_alone_also_keeps_a_function_from_the_agent(tmp_path: Path) -> None:
    # As on a kernel without Landlock: the same runner files, told that there is none.
    with tempfile.TemporaryDirectory(prefix="tidemill-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with RunnerBench(folder / "bench", SYSTEM_PYTHON) as bench:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("tidemill_workers.agent.runner_files.make_work_dir", _without_landlock)
                runner = bench.runner(ATTEMPTS)
                runner.start()
            assert runner.isolation is not None
            assert (runner.isolation.user, runner.isolation.landlock_abi) == (True, 0)
            assert "no Landlock" in runner.isolation.missing[0]
            secret = tmp_path / "secret"
            secret.write_text("x")
            secret.chmod(0o600)
            outcome = bench.run(runner, params={"agent": os.getpid(), "secret": str(secret)})
            attempts = json.loads(contents(outcome)["result.json"])["attempts"]
    del attempts["tmp"]
    assert {name: said for name, said in attempts.items() if said not in REFUSED | {"IndexError"}} == {}


def _without_landlock(work_root: Path, function: str) -> Path:
    work = make_work_dir(work_root, function)
    source = work / "lib" / "landlock.py"
    source.write_text(source.read_text().replace("return max(0, int(version))", "return 0 * version"))
    return work


def test_the_report_says_what_held_after_trying(tmp_path: Path) -> None:
    isolation = describe_isolation(Path(sys.executable), tmp_path / "runners")
    assert isolation.landlock_abi == landlock.abi()
    assert isolation.no_new_privs
    if isolation.user or isolation.landlock_abi:
        assert (isolation.agent_hidden, isolation.files_hidden) == (True, True)
    if os.geteuid() != 0:
        assert not isolation.user
        assert any("not root" in sentence for sentence in isolation.missing)


@needs_root
def test_a_root_agent_still_reads_code_that_belongs_to_somebody_else(tmp_path: Path) -> None:
    with RunnerBench(tmp_path) as bench:
        bench.write("handler.py", "def run(file, ctx):\n    return open('private').read()")
        (bench.code / "private").write_text("mine")
        for path in (bench.code, bench.code / "handler.py", bench.code / "private"):
            path.chmod(0o700)
            os.chown(path, 12345, 12345)
        runner = bench.started()
        assert runner.isolation is not None
        assert runner.isolation.capabilities == ("CAP_DAC_READ_SEARCH",)
        assert contents(bench.run(runner)) == {"result.json": b'"mine"'}


def test_an_environment_cannot_name_our_state_as_its_interpreter(tmp_path: Path) -> None:
    environment, state = tmp_path / "env", tmp_path / "state"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "python").symlink_to(sys.executable)
    (state / "lib" / "python3.11").mkdir(parents=True)
    (state / "lib" / "python3.11" / "os.py").write_text("")
    (state / "bin").mkdir()
    for home in (state / "bin", Path("/bin"), tmp_path / "elsewhere" / "bin"):
        (environment / "pyvenv.cfg").write_text(f"home = {home}\n")
        roots = readable_roots(environment / "bin" / "python", state / "runners")
        assert Path(sys.executable).resolve().parent.parent in roots
        assert environment in roots
        assert not any(state.is_relative_to(root) for root in roots)


@needs_landlock
def test_landlock_of_every_older_version_can_be_asked_for() -> None:
    # Each ABI has its own length of the request; the kernel here knows them all up to its own.
    for version in range(1, landlock.abi() + 1):
        script = (
            "import sys; sys.path.insert(0, sys.argv[2]); import landlock, ctypes\n"
            "ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)\n"
            "rules = landlock.Ruleset(int(sys.argv[1]))\n"
            "assert rules.grant('/usr', landlock.READ) and not rules.grant('/nowhere', landlock.READ)\n"
            "rules.restrict()\n"
            "open('/usr/bin/env', 'rb').close()\n"
            "try: open('/etc/passwd')\n"
            "except PermissionError: print('refused')\n"
        )
        folder = str(Path(landlock.__file__).parent)
        command = [sys.executable, "-I", "-S", "-c", script, str(version), folder]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "refused\n"


def test_the_environment_of_a_function_does_not_reach_the_process_outside_the_sandbox(tmp_path: Path) -> None:
    library = tmp_path / "no-such-library.so"
    with RunnerBench(tmp_path / "bench") as bench:
        runner = bench.started("def run(file, ctx): ...", env={"LD_PRELOAD": str(library)})
    # The loader complains once for each process that was told to load it: the function's interpreter, not the guard.
    assert runner.load_log.count(str(library)) == 1
