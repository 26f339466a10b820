"""The guard: ends everything that a function started, at the latest when the agent is gone.

It holds one end of a socket whose other end only the agent has. That end closes when the agent ends, however it ends,
and the kernel tells the guard at once: no heartbeat, no parent-death signal (which fires when the *thread* that
started the child ends). As sub-reaper it becomes the parent of every orphan among its descendants; so a sweep through
the process table finds all of them, also those that called setsid() or forked twice.

On the socket, one line each: guard to agent `p <pid of the child>`, at the end `s <wait status of the child>`; agent to
guard: any byte, or the end of the stream, means "end it all now".
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import time

_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36
# A process in an uninterruptible sleep cannot be killed; then the guard leaves it to init.
_GIVE_UP_AFTER_S = 5.0


def prepare() -> None:
    """Before the fork: makes this process the one that inherits orphans."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    # Without Landlock a function of the same user could attach to the guard; it cannot to one that is not dumpable.
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def watch(child: int, agent_fd: int) -> None:
    """Waits for the child's end or the agent's word, ends what is left, reports the child's status."""
    wake_r, wake_w = os.pipe()
    os.set_blocking(wake_r, False)
    os.set_blocking(wake_w, False)
    terminated: list[int] = []
    signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda number, _: terminated.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _tell(agent_fd, f"p {child}\n")
    poll = select.poll()
    poll.register(agent_fd, select.POLLIN | select.POLLHUP)
    poll.register(wake_r, select.POLLIN)
    status = _reap(child)
    while status is None and not terminated:
        ready = [fd for fd, _ in poll.poll()]
        if agent_fd in ready:
            break
        os.read(wake_r, 4096)
        status = _reap(child)
    if status is None:
        os.kill(child, signal.SIGKILL)
    last = end_descendants(child)
    status = last if status is None else status
    _tell(agent_fd, f"s {'' if status is None else status}\n")


def end_descendants(child: int) -> int | None:
    """Kills and reaps until this process has no descendant left; the wait status of `child` if it was among them."""
    status = None
    give_up_at = time.monotonic() + _GIVE_UP_AFTER_S
    while True:
        found = descendants(os.getpid())
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue  # gone since, or (impossible for ours) somebody else's
        ended = _reap(child)
        status = ended if ended is not None else status
        if not found or time.monotonic() > give_up_at:
            return status
        time.sleep(0.002)


def descendants(root: int) -> list[int]:
    """All processes below `root`, zombies too, parents before their children."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    # The name, in parentheses, may hold anything; state and parent follow the last one.
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue  # ended while we looked
            children.setdefault(parent, []).append(int(entry))
    found: list[int] = []
    level = [root]
    while level:
        level = [child for parent in level for child in children.get(parent, [])]
        found += level
    return found


def _reap(child: int) -> int | None:
    status = None
    while True:
        try:
            pid, ended = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if not pid:
            return status
        if pid == child:
            status = ended


def _tell(agent_fd: int, line: str) -> None:
    try:
        os.write(agent_fd, line.encode())
    except OSError:
        return  # the agent is gone: nobody to tell
