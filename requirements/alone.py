"""Run a command while no other process of this checkout runs one: `python alone.py COMMAND...`.

Plain enough for any Python 3, whose version the Makefile only then checks. The lock is the open file, which the command
inherits: it ends with the command, whatever happens to it.
"""

import fcntl
import os
import sys

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "Makefile")
# Network file systems lock only what may be written; a checkout of somebody else's may only be read.
makefile = os.open(path, os.O_RDWR if os.access(path, os.W_OK) else os.O_RDONLY)
try:
    fcntl.flock(makefile, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("Another `make` installs packages here; waiting for it ...", flush=True)
    fcntl.flock(makefile, fcntl.LOCK_EX)
os.set_inheritable(makefile, True)
os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 - no shell is wanted
