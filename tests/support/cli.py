"""The command line in a test."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from click.testing import Result

Tidemill = Callable[..., Result]


def read(result: Result) -> Any:
    """Give the JSON that a command printed, which ended well."""
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def spawn(*args: str) -> "subprocess.Popen[str]":
    """Start the command line as a process of its own."""
    argv = [sys.executable, "-m", "tidemill", *args]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
