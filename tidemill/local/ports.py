"""Ports that stay ours between choosing and binding.

Asking the kernel for a free port and closing it again leaves a gap in which somebody else may take it: a second
system that starts at the same moment, or an outgoing connection that gets it as its own end. So ports are chosen below
the range of outgoing connections, and each one is reserved by an abstract Unix socket named after it. Such a socket
lives in the same network namespace as the port, vanishes with its process, and leaves no file behind.
"""

import errno
import random
import socket
from collections.abc import Iterable
from types import TracebackType
from typing import Self

LOOPBACK = "127.0.0.1"
#: SeaweedFS expects the gRPC port of each of its servers this far above the HTTP port.
GRPC_OFFSET = 10_000
# Both ends of a pair lie below 32768, where the range of outgoing connections begins on Linux.
_LOWEST, _HIGHEST = 12_000, 22_700
_TRIES = 2_000


class NoFreePort(OSError):
    """No free loopback port was found."""


class Reservation:
    """The ports of one system: reserved until closed, or until this process ends."""

    def __init__(self) -> None:
        self._held: dict[int, socket.socket] = {}

    def take(self, wanted: int | None = None, *, also: Iterable[int] = ()) -> int:
        """A free port of loopback, `wanted` if that one is free. `also`: offsets that must be free too.

        Raises `NoFreePort` when none is found.
        """
        offsets = (0, *also)
        candidates = [wanted] if wanted else []
        candidates += [random.randrange(_LOWEST, _HIGHEST) for _ in range(_TRIES)]  # noqa: S311  (not a secret)
        for port in candidates:
            if self._try(port, offsets):
                return port
        raise NoFreePort(f"no free port on {LOOPBACK} between {_LOWEST} and {_HIGHEST}")

    def take_exactly(self, port: int) -> int:
        """Reserves this port, or raises `NoFreePort` when somebody has it."""
        if not self._try(port, (0,)):
            raise NoFreePort(f"port {port} on {LOOPBACK} is in use")
        return port

    def take_pair(self, wanted: int | None = None) -> int:
        """A port that is free together with the one `GRPC_OFFSET` above it."""
        return self.take(wanted, also=(GRPC_OFFSET,))

    def close(self) -> None:
        """Gives all ports back."""
        for held in self._held.values():
            held.close()
        self._held.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _try(self, port: int, offsets: Iterable[int]) -> bool:
        taken: dict[int, socket.socket] = {}
        for number in (port + offset for offset in offsets):
            held = None if number in self._held or not 0 < number < 65_536 else _reserve(number)
            if held is None:
                for other in taken.values():
                    other.close()
                return False
            taken[number] = held
        self._held.update(taken)
        return True


def is_free(port: int) -> bool:
    """Whether nobody listens on this port of loopback right now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As every server does: otherwise connections that have just ended would make their port look taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def _reserve(port: int) -> socket.socket | None:
    held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        held.bind(f"\0tidemill-port-{port}")
    except OSError:
        held.close()
        return None
    if not is_free(port):
        held.close()
        return None
    return held
