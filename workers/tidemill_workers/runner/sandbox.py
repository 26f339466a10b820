"""How a runner shuts itself in, before the first line of user code.

In order: no core dumps; no new privileges, so that no set-uid program helps out; an unprivileged user and group of
its own, if we are root and that user can reach the interpreter and the code; no capabilities; Landlock. Each level
that the system does not offer is left out and said in the report: a laptop without root still has Landlock, an old
kernel under root still has the other user. The network stays open: functions download models, and our own servers ask
for passwords.

What no level covers, by nature: metadata outside (stat, and chmod where the user is the same), path-named Unix
sockets that the user may open, and /dev/shm, which all runners of one user share.
"""

from __future__ import annotations

import ctypes
import glob
import os
import resource
import stat
import struct
from typing import Any

from . import landlock

_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL = 24, 38, 47, 4
_CAP_DAC_READ_SEARCH = 2
_CAPABILITY_V3 = 0x20080522

# Not /tmp, /home, /root, /run and /var, where other people's secrets are.
_READ = [
    "/usr",
    "/lib",
    "/lib32",
    "/lib64",
    "/bin",
    "/sbin",
    "/opt",
    "/nix",
    "/proc",
    "/sys",
    *glob.glob("/run/nvidia*"),
]
# By name: to the root user without capabilities, disks in /dev are still readable files of its own.
_DEVICES = ["null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "dri", "kfd", "infiniband"]


def apply(policy: dict[str, Any]) -> dict[str, Any]:
    """Shuts this process in; the levels that hold.

    `policy`: `read`, `write` (lists of paths), `work` (the runner's folder, with `home`, `tmp` and `out` to own and
    `in` to read), `reach` (paths that another user must be able to use), `python`, `uid` (or None). The reply: `user`
    (bool), `uid`, `landlock_abi` (0 = none), `no_new_privs`, `capabilities` (names of those kept), `missing`
    (sentences).
    """
    missing: list[str] = []
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _die_first_when_memory_is_short()
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privs = libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    if not no_new_privs:
        missing.append("The kernel refused no_new_privs")
    abi = landlock.abi() if no_new_privs else 0
    ruleset = _ruleset(abi, policy) if abi else None
    user, kept = _drop_privileges(libc, policy, missing)
    if ruleset is None:
        missing.append("The kernel has no Landlock: functions can read whatever their user can")
    else:
        ruleset.restrict()
    return {
        "user": user,
        "uid": os.getuid(),
        "landlock_abi": abi,
        "no_new_privs": no_new_privs,
        "capabilities": ["CAP_DAC_READ_SEARCH"] if kept else [],
        "missing": missing,
    }


def _ruleset(abi: int, policy: dict[str, Any]) -> landlock.Ruleset:
    rules = landlock.Ruleset(abi)
    for path in [*_READ, *_etc(), *policy["read"]]:
        rules.grant(path, landlock.READ)
    for path in ("/dev", "/etc"):
        rules.grant(path, landlock.READ_DIR)
    for path in [*(f"/dev/{name}" for name in _DEVICES), *glob.glob("/dev/nvidia*"), *policy["write"]]:
        rules.grant(path, landlock.WRITE)
    return rules


def _etc() -> list[str]:
    """What everybody may read in /etc (so not shadow, for root either), certificates, where names are resolved."""
    paths = ["/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/pki/tls/certs", "/etc/pki/ca-trust"]
    for entry in os.scandir("/etc"):
        try:
            public = entry.stat().st_mode & stat.S_IROTH
        except OSError:
            continue  # a dangling link
        if public and entry.name not in ("ssl", "pki"):  # private keys lie below them
            paths.append(entry.path)
    resolver = os.path.dirname(os.path.realpath("/etc/resolv.conf"))
    if resolver.startswith("/run/"):
        paths.append(resolver)
    return paths


def _drop_privileges(libc: Any, policy: dict[str, Any], missing: list[str]) -> tuple[bool, set[int]]:
    """Another user if that works, and no capabilities; whether it is another user, and the capabilities kept."""
    if os.geteuid() != 0:
        missing.append("The agent is not root: functions run as its own user")
        libc.prctl(_PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL, 0, 0, 0)
        _set_capabilities(libc, set())
        return False, set()
    uid = int(policy.get("uid") or 0)
    unreachable = _hand_over(uid, policy) if uid else "no user id is free"
    kept: set[int] = set()
    if unreachable:
        missing.append(f"Functions run as root without capabilities: {unreachable}")
        kept = _needed_as_root(libc, policy)
    for capability in range(64):
        if capability not in kept:
            libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    libc.prctl(_PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL, 0, 0, 0)
    if not unreachable:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    _set_capabilities(libc, kept)
    return not unreachable, kept


def _hand_over(uid: int, policy: dict[str, Any]) -> str:
    """Gives the runner's folders to the user and tries, as that user, what it needs; the reason why not, or ''."""
    work = policy["work"]
    _own(work, uid)
    groups = os.getgroups()
    try:
        os.setgroups([])
        os.setegid(uid)
        os.seteuid(uid)
        blocked = _unreachable(policy)
    except OSError as error:
        blocked = f"no other user is allowed here ({error.strerror})"
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)
    if blocked:
        _own(work, 0)
    return blocked


def _own(work: str, uid: int) -> None:
    """The agent's folders are readable for the runner's group only; `home`, `tmp` and `out` are the runner's."""
    for folder, mode in ((work, 0o710), (f"{work}/lib", 0o750), (f"{work}/in", 0o750)):
        os.chown(folder, -1, uid)
        os.chmod(folder, mode)
    for folder in (f"{work}/home", f"{work}/tmp", f"{work}/out"):
        os.chown(folder, uid, uid)


def _needed_as_root(libc: Any, policy: dict[str, Any]) -> set[int]:
    """Files of another owner need one capability of reading; Landlock then bounds what is read."""
    _set_capabilities(libc, set(), permitted=set(range(64)))
    blocked = _unreachable(policy)
    _set_capabilities(libc, set(range(64)))
    return {_CAP_DAC_READ_SEARCH} if blocked else set()


def _unreachable(policy: dict[str, Any]) -> str:
    for path in policy["reach"]:
        wanted = os.R_OK | os.X_OK if os.path.isdir(path) or path == policy["python"] else os.R_OK
        if not os.access(path, wanted, effective_ids=True):
            return f"another user cannot reach {path}"
    return ""


def _set_capabilities(libc: Any, effective: set[int], permitted: set[int] | None = None) -> None:
    """capset(2), version 3: two words of effective, permitted, inheritable. The kernel ignores numbers that it has
    not."""
    permitted = effective if permitted is None else permitted
    current = _permitted(libc)
    words = []
    for low in (0, 32):
        masks = [
            sum(1 << (c - low) for c in caps if low <= c < low + 32) & (current >> low)
            for caps in (effective, permitted)
        ]
        words += [*(mask & 0xFFFFFFFF for mask in masks), 0]
    if libc.capset(struct.pack("=Ii", _CAPABILITY_V3, 0), struct.pack("=6I", *words)):
        raise OSError(ctypes.get_errno(), "capset")


def _permitted(libc: Any) -> int:
    data = ctypes.create_string_buffer(24)
    if libc.capget(struct.pack("=Ii", _CAPABILITY_V3, 0), data):
        raise OSError(ctypes.get_errno(), "capget")
    words = struct.unpack("=6I", data.raw)
    return int(words[1]) | int(words[4]) << 32


def _die_first_when_memory_is_short() -> None:
    """Rather a function than its agent: the agent reports the end, and other functions go on."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")
    except OSError:
        return  # a container may have set a higher one already, which is as good
