"""Starting a child that cannot outlive us, even when we are killed with SIGKILL.

Linux sends a child the signal that it asked for with `PR_SET_PDEATHSIG` when the *thread* that forked it ends. So
children are started from the main thread only. The request is made by a tiny Python program between fork and exec:
running Python code after fork in our own process (`preexec_fn`) is not safe once we have threads. If we die before the
request is made, the child sees another parent than the one that it was told of, and leaves.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

_PR_SET_PDEATHSIG = 1
_SHIM = f"""
import ctypes, os, sys
ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, 9, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    os.write(2, f"{{sys.argv[2]}}: {{error.strerror}}\\n".encode())
    os._exit(127)
"""


def spawn(
    argv: Sequence[str], *, env: Mapping[str, str], cwd: Path | None = None, output: IO[bytes] | int
) -> "subprocess.Popen[bytes]":
    """Starts `argv` with exactly `env`, in a session of its own, without a terminal; stdout and stderr to `output`.

    It gets SIGKILL when this process ends. Its process id is its process group. A program that cannot be started ends
    with status 127 and says why in `output`. Must be called from the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("a child started from a side thread would die with that thread")
    shim = [sys.executable, "-I", "-S", "-c", _SHIM, str(os.getpid()), *argv]
    return subprocess.Popen(
        shim, env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
    )
