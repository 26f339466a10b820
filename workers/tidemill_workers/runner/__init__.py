"""The runner: the child process in which a function's own code runs.

These files are copied, as plain files, into a folder that the runner may read, together with `tidemill/handler.py`.
They use the standard library only and never import `tidemill` or `tidemill_workers`: the interpreter that runs them
is the function's. Inside a runner they are the package `_tidemill_runner`, a name that no user's module has, and
loaded before the function's folder comes on `sys.path`: so a function may have modules called `wire`, `child` or
`workers`.

A runner is two processes:

    agent ──(socket)── launch.py, the guard: the agent's interpreter, no user code, nothing but this in it
      │                   └─ fork, sandbox, exec ─ child.py: the function's interpreter, own session, user code
      └─────(two pipes: requests, replies; and stdout, stderr)───┘

The guard (`guard.py`) is there because nothing inside the function's process is sure to run: user code may hold the
GIL for ever. It is the sub-reaper of all that the function starts, so even a daemon that made its own session stays
its descendant, and it ends every one of them when the agent asks, when the agent's end of the socket closes for
whatever reason, or when the child ends. The sandbox (`sandbox.py`) is applied before the function's interpreter
starts, because a `.pth` file in its environment is user code already.
"""
