"""The ledger: the live state of every job, agent, pool and function. `api.py` says what it promises."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemill.ledger.redis_ledger import RedisLedger


def connect(url: str, prefix: str = "tm:") -> RedisLedger:
    """Give the ledger at a Redis address. Connects with the first call.

    Raises:
        ValueError: the address is none.
    """
    from tidemill.ledger.connection import Connection
    from tidemill.ledger.redis_ledger import RedisLedger

    return RedisLedger(Connection(url, prefix))
