"""The settled set: the identities that are finished for good, one 64-bit digest each in 1,024 integer sets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from tidemill.ledger import wire
from tidemill.ledger.connection import Arg, Connection
from tidemill.models import settled_place

_CHUNK = 1000


class SettledCalls:
    """Asking and filling the settled set, in chunks."""

    _connection: Connection

    def known(self, job_ids: Sequence[str]) -> list[bool]:
        found: list[bool] = []
        for start in range(0, len(job_ids), _CHUNK):
            args: list[Arg] = []
            for job_id in job_ids[start : start + _CHUNK]:
                args += (job_id, *settled_place(job_id))
            found += [reply == 1 for reply in self._connection.run("known", *args)]
        return found

    def settle(self, job_ids: Iterable[str]) -> int:
        new = 0
        ids = iter(job_ids)
        while chunk := list(islice(ids, _CHUNK)):
            places = [part for job_id in chunk for part in settled_place(job_id)]
            new += int(self._connection.run("settle", *places))
        return new

    def unsettle(self, job_ids: Iterable[str], *, fence: int | None = None) -> int:
        dropped = 0
        ids = iter(job_ids)
        while chunk := list(islice(ids, _CHUNK)):
            args: list[Arg] = [wire.fence_arg(fence)]
            for job_id in chunk:
                args += (job_id, *settled_place(job_id))
            dropped += int(self._connection.run("unsettle", *args))
        return dropped
