"""The public names keep their types: mypy reads `api.py` with the project's own strict settings."""

import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


def test_mypy_accepts_each_public_call(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path), "tests/typing/api.py"]
    done = subprocess.run(argv, cwd=_ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
