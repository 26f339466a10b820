"""The command line as a process: Ctrl-C, and readers that leave."""

import signal
import threading
from pathlib import Path

import pytest

from tests.support import wait_until
from tests.support.cli import spawn
from tests.support.fake_gateway import FakeGateway


def test_ctrl_c_detaches_and_says_how_to_come_back(gateway: FakeGateway, cat: Path) -> None:
    process = spawn("run", "echo", str(cat))
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
    process = spawn("watch", str(tmp_path), "inbox/w", "--interval", "0.1")
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
    process = spawn("job", "list")
    assert process.stdout is not None
    assert process.stdout.readline()
    process.stdout.close()
    process.wait(30)
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()


_INTERRUPTING = """
import os, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPTED_IMPORT"]:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
"""


@pytest.mark.parametrize("module", ["click", "tidemill.cli.group", "tidemill.cli.faults", "tidemill.cli.job", "httpx"])
def test_ctrl_c_while_it_is_loaded_shows_no_traceback(
    gateway: FakeGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(_INTERRUPTING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("INTERRUPTED_IMPORT", module)
    process = spawn("job", "list")
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "\nInterrupted.\n")
