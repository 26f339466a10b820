"""Entry of the guard: `<agent's python> -I -S launch.py <requests fd> <replies fd> <socket fd>`.

Its environment is the agent's choice: what a function's `env` says (LD_PRELOAD, say) must not work outside the sandbox.
Forks first and stays small; the forked half reads the launch order (the first message), shuts itself in, reports how
far that went, and becomes the function's interpreter.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import sys
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))


def main() -> None:
    """Guard in the parent, the function's interpreter in the child."""
    requests_fd, replies_fd, agent_fd = (int(arg) for arg in sys.argv[1:4])
    sys.dont_write_bytecode = True
    _package()
    guard: Any = importlib.import_module("_tidemill_runner.guard")
    guard.prepare()
    child = os.fork()
    if child == 0:
        os.close(agent_fd)
        _become_runner(requests_fd, replies_fd)
    os.close(requests_fd)
    os.close(replies_fd)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (1, 2):  # else the agent would wait for the guard to close the function's stdout
        os.dup2(null, fd)
    os.close(null)
    os.chdir("/")
    guard.watch(child, agent_fd)


def _become_runner(requests_fd: int, replies_fd: int) -> None:
    sandbox: Any = importlib.import_module("_tidemill_runner.sandbox")
    wire: Any = importlib.import_module("_tidemill_runner.wire")
    try:
        os.setsid()
        _reset_signals()
        order: Any = wire.receive(requests_fd)
        if order is None:
            os._exit(0)
        levels = sandbox.apply(order["policy"])
        wire.send(replies_fd, {"type": "isolation", **levels})
        for fd in (requests_fd, replies_fd):
            os.set_inheritable(fd, True)
        os.chdir(order["cwd"])
        argv = [
            order["python"],
            "-I",
            "-X",
            "utf8",
            "-X",
            "faulthandler",
            os.path.join(HERE, "child.py"),
            str(requests_fd),
            str(replies_fd),
        ]
        os.execve(argv[0], argv, order["env"])
    except BaseException as error:
        message = f"The runner could not start: {type(error).__name__}: {error}"
        wire.send(replies_fd, {"type": "error", "phase": "launch", "code": "runner_start_failed", "message": message})
    os._exit(1)


def _reset_signals() -> None:
    """What the agent ignores or blocks is not the function's business."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _package() -> None:
    spec = importlib.util.spec_from_file_location(
        "_tidemill_runner", os.path.join(HERE, "__init__.py"), submodule_search_locations=[HERE]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["_tidemill_runner"] = package
    spec.loader.exec_module(package)


if __name__ == "__main__":
    main()
    os._exit(0)
