"""A server that lost its memory and got it back: nothing that a process remembers of it may fit by accident."""

from __future__ import annotations

import redis

from tidemill.ledger import connect
from tidemill.models import PoolSpec


def test_a_version_is_never_met_again_after_a_loss(redis_url: str) -> None:
    ledger = connect(redis_url)
    ledger.put_pool(PoolSpec(name="near", slots=1))
    ledger.put_pool(PoolSpec(name="far", slots=1))
    before = ledger.version()
    with redis.Redis.from_url(redis_url) as client:
        client.flushdb()
    ledger.put_pool(PoolSpec(name="near", slots=2))
    ledger.put_pool(PoolSpec(name="far", slots=2))
    # Two changes each time: a plain counter would say that nothing has changed.
    assert ledger.version() > before
    ledger.close()
