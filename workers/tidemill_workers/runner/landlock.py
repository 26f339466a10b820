"""Landlock by system call: which files a process, and all it starts, may open from now on.

Works without privileges on kernels from 5.13; each newer ABI adds rights. What is handled here is denied everywhere
but below the granted paths; what an old kernel does not know stays free. Beyond files, a process in a Landlock domain
cannot trace one outside of it, which closes /proc/<pid>/{environ,mem,fd,root}, and from ABI 6 cannot signal one or
reach its abstract sockets. Numbers: linux/landlock.h; the system calls have the same numbers on x86-64, arm64 and
riscv.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1
_PATH_BENEATH = 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_ABI1 = (1 << 13) - 1
_ON_FILES = EXECUTE | WRITE_FILE | READ_FILE | _TRUNCATE
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1 << 0, 1 << 1

READ = EXECUTE | READ_FILE | READ_DIR
# No device nodes: makes neither character (6) nor block (11) devices.
WRITE = READ | WRITE_FILE | (_ABI1 & ~0xF & ~(1 << 6) & ~(1 << 11)) | _REFER | _TRUNCATE


def abi() -> int:
    """The ABI version of the running kernel, 0 without Landlock."""
    version = ctypes.CDLL(None, use_errno=True).syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)
    return max(0, int(version))


class Ruleset:
    """Paths are granted first (with the rights that the caller still has), then `restrict` closes the rest for good."""

    def __init__(self, abi_version: int) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.handled = _ABI1 | (_REFER if abi_version >= 2 else 0) | (_TRUNCATE if abi_version >= 3 else 0)
        attributes = struct.pack("=QQQ", self.handled, 0, _SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS)
        # An older kernel refuses a longer structure than it knows.
        attributes = attributes[: 24 if abi_version >= 6 else 16 if abi_version >= 4 else 8]
        self._fd = self._call(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)

    def grant(self, path: str, rights: int) -> bool:
        """Grants rights on a file, or on a folder with all below it; False when there is no such path."""
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            if not stat.S_ISDIR(os.fstat(fd).st_mode):
                rights &= _ON_FILES
            rule = struct.pack("=Qi", rights & self.handled, fd)
            self._call(_ADD_RULE, self._fd, _PATH_BENEATH, rule, 0)
        finally:
            os.close(fd)
        return True

    def restrict(self) -> None:
        """Applies to this thread and all that it starts; needs no_new_privs."""
        self._call(_RESTRICT_SELF, self._fd, 0)
        os.close(self._fd)

    def _call(self, number: int, *args: object) -> int:
        result = int(self._libc.syscall(number, *args))
        if result < 0:
            raise OSError(ctypes.get_errno(), f"Landlock system call {number}: {os.strerror(ctypes.get_errno())}")
        return result
