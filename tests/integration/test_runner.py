"""What a function can say and do in a runner, and what the agent hears."""

import json
import threading
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.runners import RunnerBench, contents, is_alive
from tests.support.waiting import wait_until
from tidemill_workers.agent.runners import Outcome, RunnerStartFailed


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[RunnerBench]:
    with RunnerBench(tmp_path) as bench:
        yield bench


def _error(outcome: Outcome) -> tuple[str, str, str]:
    assert outcome.error is not None
    return outcome.kind, outcome.error.code, outcome.error.message


def test_a_class_is_loaded_once_and_keeps_its_state_between_jobs(bench: RunnerBench) -> None:
    runner = bench.started(
        """
        from tidemill import Context, File

        class Handler:
            def load(self, ctx: Context):
                print("loading")
                self.loads = getattr(self, "loads", 0) + 1
                self.calls = 0

            def __call__(self, file: File, ctx: Context):
                self.calls += 1
                return [self.loads, self.calls]
        """,
        handler="handler:Handler",
    )
    assert runner.load_log == "loading"
    assert [contents(bench.run(runner))["result.json"] for _ in range(3)] == [b"[1, 1]", b"[1, 2]", b"[1, 3]"]
    pid = runner.pid
    runner.stop()
    assert not runner.alive
    assert pid is not None
    assert not is_alive(pid)
    assert list(bench.work_root.iterdir()) == []


def test_a_handler_sees_file_job_and_params_and_its_reports_arrive_in_order(bench: RunnerBench) -> None:
    outcome = bench.outcome(
        """
        import dataclasses, os, sys

        def run(file, ctx):
            ctx.log.info("from the %s", "log")
            print("to stdout")
            print("to stderr", file=sys.stderr)
            for done in range(1, 1001):
                ctx.progress(done, 1000, "pages")
            (ctx.output_dir / "sub").mkdir()
            (ctx.output_dir / "sub" / "page.txt").write_text("page")
            with file.open() as content:
                assert content.read() == file.read()
            return {
                "file": {**dataclasses.asdict(file), "path": file.path.name},
                "job": dataclasses.asdict(ctx.job),
                "params": ctx.params,
                "gpu": ctx.gpu,
                "cancelled": ctx.cancelled,
                "cwd": os.getcwd(),
            }
        """,
        content=b"hello",
        params={"top_k": 3},
    )
    files = contents(outcome)
    assert files["sub/page.txt"] == b"page"
    assert json.loads(files["result.json"]) == {
        "file": {
            "path": "a b.txt",
            "name": "a b.txt",
            "bucket": "inbox",
            "key": "deep/a b.txt",
            "size": 5,
            "content_type": "text/plain",
            "metadata": {"colour": "blue"},
        },
        "job": {
            "id": "job0",
            "function": "fn",
            "revision": "r1",
            "generation": 1,
            "attempt": 2,
            "owner": "ann",
            "input": {"bucket": "inbox", "key": "deep/a b.txt", "size": 5},
        },
        "params": {"top_k": 3},
        "gpu": None,
        "cancelled": False,
        "cwd": str(bench.code),
    }
    assert bench.seen.lines("log") == ["INFO from the log"]
    assert bench.seen.lines("stdout") == ["to stdout"]
    assert bench.seen.lines("stderr") == ["to stderr"]
    assert bench.seen.progress[-1] == (1000.0, 1000.0, "pages")
    assert len(bench.seen.progress) < 100


def test_a_function_may_have_modules_with_the_names_of_ours(bench: RunnerBench) -> None:
    names = ["wire", "child", "sandbox", "results", "serve", "handler_", "tidemill_x", "_child"]
    packages = ["workers", "placement", "gateway", "runner"]
    for name in names:
        bench.write(f"{name}.py", f"NAME = 'own {name}'")
    for name in packages:
        bench.write(f"{name}/__init__.py", f"NAME = 'own {name}'")
    imports = "\n".join(f"import {name}" for name in names + packages)
    values = ", ".join(f"{name}.NAME" for name in names + packages)
    bench.write("handler.py", f"{imports}\ndef run(file, ctx):\n    return [{values}]")
    got = json.loads(contents(bench.run(bench.started()))["result.json"])
    assert got == [f"own {name}" for name in names + packages]


def test_of_tidemill_a_function_sees_what_handlers_need_and_nothing_else(bench: RunnerBench) -> None:
    outcome = bench.outcome(
        """
        import sys, tidemill

        def run(file, ctx):
            assert isinstance(file, tidemill.File) and isinstance(ctx, tidemill.Context)
            ours = [name for name in sys.modules if "tidemill_workers" in name or "tidemill." in name]
            names = sorted(name for name in vars(tidemill) if not name.startswith("__"))
            return [names, tidemill.__version__, ours, sys.path[0]]
        """
    )
    names, version, ours, first = json.loads(contents(outcome)["result.json"])
    assert names == ["Context", "File", "PermanentError", "TemporaryError"]
    assert version
    assert ours == []
    assert first == str(bench.code)


def test_multiprocessing_works_in_both_ways_of_starting(bench: RunnerBench) -> None:
    outcome = bench.outcome(
        """
        import multiprocessing

        def double(file):
            print("worker")
            return file.size * 2

        def run(file, ctx):
            sizes = []
            for method in ("spawn", "fork"):
                with multiprocessing.get_context(method).Pool(1) as pool:
                    sizes.append(pool.apply(double, (file,)))
            return sizes
        """,
        content=b"four",
    )
    assert contents(outcome) == {"result.json": b"[8, 8]"}


def test_each_way_to_fail_is_told_apart(bench: RunnerBench) -> None:
    bench.write("deep.py", "def fall():\n    raise KeyError('lost')\n")
    runner = bench.started(
        """
        import sys, deep
        from tidemill import PermanentError, TemporaryError

        def run(file, ctx):
            print("before", ctx.params["how"])
            how = ctx.params["how"]
            if how == "permanent":
                raise PermanentError("not an image")
            if how == "temporary":
                raise TemporaryError("busy", delay=12.5)
            if how == "exit":
                sys.exit(4)
            if how == "odd":
                return {"when": object()}
            deep.fall()
        """
    )
    outcome = bench.run(runner, params={"how": "permanent"})
    assert _error(outcome) == ("permanent", "permanent_error", "PermanentError: not an image")
    outcome = bench.run(runner, params={"how": "temporary"})
    assert _error(outcome) == ("temporary", "temporary_error", "TemporaryError: busy")
    assert outcome.delay_s == 12.5
    outcome = bench.run(runner, params={"how": "exit"})
    assert _error(outcome) == ("failed", "function_exited", "The function called sys.exit(4)")
    outcome = bench.run(runner, params={"how": "odd"})
    assert outcome.error is not None
    assert (outcome.kind, outcome.error.code) == ("permanent", "result_not_serialisable")
    assert "the result['when'] is object" in outcome.error.message
    outcome = bench.run(runner, params={"how": "other"})
    assert _error(outcome) == ("failed", "function_error", "KeyError: 'lost'")
    assert outcome.error is not None
    assert outcome.error.log_tail == "before other"
    frames = [line for line in outcome.error.traceback.splitlines() if line.startswith("  File")]
    assert len(frames) == 2
    assert "handler.py" in frames[0]
    assert "deep.py" in frames[1]
    assert runner.alive


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("os._exit(3)", "process_exited", "exit code 3"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "process_killed", "SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "process_killed", "SIGKILL; most often that is the system"),
        ("os.closerange(3, 5000); time.sleep(0.2); os._exit(0)", "process_exited", "exit code 0"),
    ],
)
def test_a_process_that_ends_is_a_crash_with_the_last_lines(bench: RunnerBench, how: str, code: str, said: str) -> None:
    runner = bench.started(
        f"""
        import os, signal, time

        def run(file, ctx):
            print("last words")
            {how}
        """
    )
    outcome = bench.run(runner)
    assert outcome.kind == "crashed"
    assert outcome.error is not None
    assert outcome.error.code == code
    assert said in outcome.error.message
    assert outcome.error.log_tail.splitlines()[0] == "last words"
    assert not runner.alive
    with pytest.raises(RuntimeError):
        bench.run(runner)


def test_fifty_megabytes_of_print_end_as_a_bounded_log(bench: RunnerBench) -> None:
    outcome = bench.outcome(
        """
        import subprocess, sys

        def run(file, ctx):
            for number in range(500_000):
                print("x" * 49)
            subprocess.run(["head", "-c", "25000000", "/dev/zero"], check=True)
            sys.stdout.buffer.write(bytes(range(256)) * 4)
            print("\\nthe last line")
            return 1
        """,
        timeout_s=60,
    )
    assert contents(outcome) == {"result.json": b"1"}
    assert sum(len(line.encode()) for _, line in bench.seen.log) < 700 * 1024
    assert bench.seen.lines("stdout")[0] == "x" * 49
    assert bench.seen.lines("stdout")[-1] == "the last line"
    assert "are not kept" in bench.seen.lines("tidemill")[0]


def test_a_function_that_breaks_its_streams_still_answers_and_the_next_job_can_print(bench: RunnerBench) -> None:
    runner = bench.started(
        """
        import os, sys

        def run(file, ctx):
            how = ctx.params.get("how")
            if how == "close":
                os.close(1)
                os.close(2)
                open("/dev/null").close()
            elif how == "object":
                sys.stdout.close()
                sys.stderr = None
            else:
                print("hello \\ud800")
            return how
        """
    )
    for how in ("close", None, "object", None):
        outcome = bench.run(runner, params={"how": how} if how else {})
        assert contents(outcome) == {"result.json": json.dumps(how).encode()}
        if how is None:
            assert bench.seen.lines("stdout") == ["hello \\ud800"]


def test_a_forked_copy_of_the_function_cannot_answer_in_its_place(bench: RunnerBench) -> None:
    runner = bench.started(
        """
        import os

        def run(file, ctx):
            child = os.fork()
            if child == 0:
                ctx.progress(99)
                ctx.log.info("from the copy")
                return "the copy"
            os.waitpid(child, 0)
            return "the original"
        """
    )
    for _ in range(2):
        assert contents(bench.run(runner)) == {"result.json": b'"the original"'}
    assert bench.seen.progress == []
    assert "INFO from the copy" in bench.seen.lines("stderr")


def test_the_input_cannot_be_altered_and_is_gone_after_the_job(bench: RunnerBench) -> None:
    runner = bench.started(
        """
        import os

        def run(file, ctx):
            refused = []
            for action in (
                lambda: open(file.path, "ab"),
                lambda: os.truncate(file.path, 0),
                lambda: os.unlink(file.path),
                lambda: os.rename(file.path, ctx.output_dir / "x"),
                lambda: os.link(file.path, ctx.output_dir / "x"),
                lambda: open(file.path.parent / "new", "wb"),
            ):
                try:
                    action()
                except OSError:
                    refused.append(True)
            return [len(refused), str(file.path)]
        """
    )
    if runner.isolation is None or runner.isolation.landlock_abi < 3:
        pytest.skip("the kernel's Landlock is too old to protect the input from a function of the same user")
    for _ in range(2):
        refused, path = json.loads(contents(bench.run(runner))["result.json"])
        assert refused == 6
        assert not Path(path).exists() and not list(Path(path).parent.iterdir())


def test_an_input_that_cannot_be_removed_ends_the_runner_and_not_the_job(
    bench: RunnerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = bench.started("def run(file, ctx): return 1")
    monkeypatch.setattr("tidemill_workers.agent.runner_files.remove_inputs", lambda folder: False)
    assert contents(bench.run(runner)) == {"result.json": b"1"}
    wait_until(lambda: not runner.alive)


def test_a_handler_may_remove_its_output_folder_and_return_a_value(bench: RunnerBench) -> None:
    runner = bench.started("def run(file, ctx):\n    ctx.output_dir.rmdir()\n    return 1\n")
    assert contents(bench.run(runner)) == {"result.json": b"1"}


@pytest.mark.parametrize(
    "harm", ["(after / 'old').write_text('x')", "after.rmdir()", "after.rmdir(), after.symlink_to('/')"]
)
def test_what_happens_to_the_next_jobs_folder_in_the_background_does_not_show(bench: RunnerBench, harm: str) -> None:
    """The folder of the next job's outputs is made ahead, beside this job's."""
    runner = bench.started(
        f"""
        import os
        import pathlib
        import threading
        import time

        done = pathlib.Path(os.environ["HOME"], "done")

        def later(after):
            while not after.exists():
                time.sleep(0.001)
            {harm}
            done.touch()

        def run(file, ctx):
            if done.exists():
                return "next"
            after = ctx.output_dir.parent / str(int(ctx.output_dir.name) + 1)
            threading.Thread(target=later, args=(after,), daemon=True).start()
            return "first"
        """
    )
    assert contents(bench.run(runner)) == {"result.json": b'"first"'}
    wait_until(lambda: list(bench.work_root.glob("*/home/done")))
    assert contents(bench.run(runner)) == {"result.json": b'"next"'}


def test_links_in_the_output_folder_are_not_published_nor_is_a_replaced_folder(bench: RunnerBench) -> None:
    runner = bench.started(
        """
        import os, shutil

        def run(file, ctx):
            if ctx.params.get("replace"):
                ctx.output_dir.rmdir()
                open(os.environ["HOME"] + "/file", "w").close()
                os.symlink(os.environ["HOME"], ctx.output_dir)
            else:
                os.symlink("/etc/passwd", ctx.output_dir / "passwd.txt")
                os.mkfifo(ctx.output_dir / "pipe")
                (ctx.output_dir / "good.txt").write_text("good")
        """
    )
    assert contents(bench.run(runner)) == {"good.txt": b"good"}
    outcome = bench.run(runner, params={"replace": True})
    assert outcome.error is not None
    assert outcome.error.code == "output_not_allowed"
    assert not outcome.outputs_dir.exists()


def test_a_cancelled_function_that_looks_ends_by_itself_and_its_runner_lives_on(bench: RunnerBench) -> None:
    runner = bench.started(
        """
        import time

        def run(file, ctx):
            if ctx.params.get("quick"):
                return ctx.cancelled
            print("ready")
            while not ctx.cancelled:
                time.sleep(0.01)
            return "stopped"
        """
    )
    assert runner.cancel() is False
    result: list[Outcome] = []
    thread = threading.Thread(target=lambda: result.append(bench.run(runner)))
    thread.start()
    wait_until(lambda: bench.seen.lines("stdout") == ["ready"])
    assert runner.cancel(grace_s=10) is True
    thread.join(10)
    assert result[0].kind == "cancelled"
    assert runner.alive
    assert contents(bench.run(runner, params={"quick": 1})) == {"result.json": b"false"}


def test_two_runners_of_one_function_have_nothing_in_common(bench: RunnerBench) -> None:
    source = """
        import os
        from pathlib import Path

        def run(file, ctx):
            Path(os.environ["HOME"], "mark").write_text("x")
            other = ctx.params.get("other")
            if other is None:
                return os.environ["HOME"]
            try:
                return Path(other, "mark").read_text()
            except OSError as error:
                return type(error).__name__
        """
    first, second = bench.started(source), bench.started()
    home = json.loads(contents(bench.run(first))["result.json"])
    if first.isolation is None or first.isolation.landlock_abi < 1:
        pytest.skip("the kernel has no Landlock")
    assert contents(bench.run(second, params={"other": home})) == {"result.json": b'"PermissionError"'}


@pytest.mark.parametrize(
    ("source", "handler", "permanent", "code", "said"),
    [
        ("def broken(:\n", "handler:run", True, "load_failed", "SyntaxError"),
        ("import nowhere\n", "handler:run", True, "load_failed", "No module named 'nowhere'"),
        ("def other(): ...\n", "handler:run", True, "handler_not_found", "it has: other"),
        ("run = 3\n", "handler:run", True, "handler_not_callable", "int"),
        ("", "missing:run", True, "load_failed", "No module named 'missing'"),
        ("raise ConnectionError('hub')\n", "handler:run", False, "load_failed", "ConnectionError: hub"),
        ("import tidemill\nraise tidemill.TemporaryError('later')\n", "handler:run", False, "temporary_error", "later"),
        ("import tidemill\nraise tidemill.PermanentError('no')\n", "handler:run", True, "permanent_error", "no"),
        ("import os\nos._exit(7)\n", "handler:run", True, "process_exited", "exit code 7"),
        ("import os, signal\nos.kill(os.getpid(), 9)\n", "handler:run", False, "process_killed", "SIGKILL"),
    ],
)
def test_a_function_that_cannot_be_loaded_says_why_and_whether_it_ever_will(
    bench: RunnerBench, source: str, handler: str, permanent: bool, code: str, said: str
) -> None:
    bench.write("handler.py", "print('importing')\n" + source)
    runner = bench.runner(handler=handler)
    with pytest.raises(RunnerStartFailed) as caught:
        runner.start()
    failed = caught.value
    assert (failed.permanent, failed.code) == (permanent, code)
    assert said in failed.message
    if code == "load_failed":
        assert "_tidemill_runner" not in failed.traceback
        assert "/lib/" not in failed.traceback.split("handler.py")[0]
    if handler.startswith("handler") and "SyntaxError" not in said:
        assert failed.log_tail == "importing"
    assert not runner.alive
    assert list(bench.work_root.iterdir()) == []


def test_an_interpreter_that_is_not_there_is_a_failed_start(bench: RunnerBench) -> None:
    with pytest.raises(RunnerStartFailed) as caught:
        bench.started("def run(file, ctx): ...", python=Path("/nowhere/bin/python"))
    assert caught.value.code == "runner_start_failed"
    assert "FileNotFoundError" in caught.value.message


def test_an_environment_cannot_run_code_before_the_sandbox_is_closed(bench: RunnerBench, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    venv.create(tmp_path / "env", symlinks=True, with_pip=False)
    (packages,) = (tmp_path / "env").glob("lib/python*/site-packages")
    (packages / "evil.pth").write_text("import evil\n")
    (packages / "evil.py").write_text(
        f"try:\n    SEEN = open({str(secret)!r}).read()\nexcept OSError as error:\n    SEEN = type(error).__name__\n"
    )
    source = "import sys\ndef run(file, ctx):\n    return sys.modules['evil'].SEEN"
    runner = bench.started(source, python=tmp_path / "env" / "bin" / "python")
    if runner.isolation is None or runner.isolation.landlock_abi < 1:
        pytest.skip("the kernel has no Landlock")
    assert contents(bench.run(runner)) == {"result.json": b'"PermissionError"'}


def test_callbacks_that_raise_end_the_runner_and_the_error_comes_out(bench: RunnerBench) -> None:
    runner = bench.started("def run(file, ctx):\n    print('x')\n    while True: pass")

    def refuse(stream: str, line: str) -> None:
        raise ValueError("disk full")

    with pytest.raises(ValueError, match="disk full"):
        runner.run(bench.task(), refuse, lambda *_: None)
    wait_until(lambda: not runner.alive)


def test_many_runners_start_and_work_at_once_from_many_threads(bench: RunnerBench) -> None:
    bench.write("handler.py", "import os\ndef run(file, ctx):\n    return os.getpid()")
    runners = [bench.runner() for _ in range(6)]
    tasks = [bench.task() for _ in runners]
    found: list[bytes] = []

    def work(index: int) -> None:
        runners[index].start()
        outcome = runners[index].run(tasks[index], lambda *_: None, lambda *_: None)
        found.append(contents(outcome)["result.json"])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(runners))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(set(found)) == len(runners)
    assert {int(pid) for pid in found} == {runner.pid for runner in runners}
