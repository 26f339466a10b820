"""The ledger's life number, leader leases, and the mirrors of functions and pools.

These work without an epoch: a leader has to be found, and the mirrors to be filled, before one begins.
"""

from __future__ import annotations

from redis.exceptions import RedisError

from tidemill.ledger import wire
from tidemill.ledger.api import PoolState
from tidemill.ledger.connection import Arg, Connection
from tidemill.models import FunctionRecord, PoolSpec

# The servers' default of 512 would turn a shard of the settled set into a hash table (60 bytes an entry, not 9) at
# half a million identities; 32,768 hold 33 million. An insertion moves at most 256 KB then.
_INTSET_ENTRIES = 32_768


class EpochCalls:
    """Epoch, leader leases, functions and pools."""

    _connection: Connection
    _tuned: bool = False

    def epoch(self) -> tuple[int, int] | None:
        values = self._connection.command("HMGET", self._connection.keys.one("epoch"), "epoch", "sequence")
        return (int(values[0]), int(values[1])) if values[0] is not None and values[1] is not None else None

    def begin_epoch(self, epoch: int, sequence: int) -> bool:
        self._tune()
        return bool(self._connection.run("begin_epoch", epoch, sequence, repeat=False))

    def advance(self, epoch: int, sequence: int, *, fence: int | None = None) -> bool:
        if not self._tuned:
            self._tune()  # a restarted server has forgotten it
        return bool(self._connection.run("advance", epoch, sequence, wire.fence_arg(fence)))

    def _tune(self) -> None:
        """Ask the server to keep integer sets as such. One that forbids CONFIG only needs more memory."""
        try:
            self._connection.calls.config_set("set-max-intset-entries", _INTSET_ENTRIES)
        except RedisError:
            return
        self._tuned = True

    def acquire(self, name: str, holder: str, ttl_s: float) -> int | None:
        fence = int(self._connection.run("acquire", name, holder, max(1, round(ttl_s * 1000))))
        return fence or None

    def resign(self, name: str, holder: str) -> None:
        self._connection.run("resign", name, holder)

    def put_function(self, record: FunctionRecord, *, fence: int | None = None) -> bool:
        text = record.model_dump_json()
        return bool(self._connection.run("mirror", "put_function", record.name, text, wire.fence_arg(fence)))

    def functions(self) -> dict[str, FunctionRecord]:
        found = self._connection.command("HGETALL", self._connection.keys.one("functions"))
        return {name: FunctionRecord.model_validate_json(found[name]) for name in sorted(found)}

    def function(self, name: str) -> FunctionRecord | None:
        text = self._connection.command("HGET", self._connection.keys.one("functions"), name)
        return FunctionRecord.model_validate_json(text) if text else None

    def remove_function(self, name: str, *, fence: int | None = None) -> None:
        self._connection.run("mirror", "remove_function", name, "", wire.fence_arg(fence))

    def put_pool(self, spec: PoolSpec, *, draining: bool | None = None, fence: int | None = None) -> bool:
        drains = "" if draining is None else int(draining)
        args: list[Arg] = [spec.name, spec.model_dump_json(), wire.fence_arg(fence), drains]
        return bool(self._connection.run("mirror", "put_pool", *args))

    def pools(self) -> dict[str, PoolState]:
        keys = self._connection.keys
        found, draining = self._connection.together(("HGETALL", keys.one("pools")), ("SMEMBERS", keys.one("draining")))
        return {n: PoolState(PoolSpec.model_validate_json(found[n]), n in draining) for n in sorted(found)}

    def remove_pool(self, name: str, *, fence: int | None = None) -> bool:
        return bool(self._connection.run("mirror", "remove_pool", name, "", wire.fence_arg(fence)))

    def drain_pool(self, name: str, draining: bool) -> bool:
        return bool(self._connection.run("mirror", "drain_pool", name, int(draining), ""))

    def version(self) -> int:
        return int(self._connection.command("GET", self._connection.keys.one("version")) or 0)
