"""The ledger on Redis 7 or newer, or Valkey: the calls of `api.Ledger`, put together from one module per concern.

    epochs.py    epoch, leader leases, functions, pools        jobs.py      submit ... published, cancel, sweep
    reading.py   jobs, counts, backlog, transitions            agents.py    heartbeats, wanted runners, grants
    settled.py   the settled set                               notes.py     logs, ignored objects, junk, health

Below them: connection.py (time-outs, scripts by SHA, errors), wire.py (how values look inside Redis), keys.py, and one
Lua file for each transition in scripts/. One server, no cluster: a script touches keys of many jobs at once.
"""

from __future__ import annotations

from tidemill.ledger.agents import AgentCalls
from tidemill.ledger.connection import Connection
from tidemill.ledger.epochs import EpochCalls
from tidemill.ledger.jobs import JobCalls
from tidemill.ledger.notes import NoteCalls
from tidemill.ledger.reading import ReadingCalls
from tidemill.ledger.settled import SettledCalls


class RedisLedger(EpochCalls, JobCalls, ReadingCalls, SettledCalls, AgentCalls, NoteCalls):
    """The ledger on a real server. Any thread may use it; `close` ends its connections."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def close(self) -> None:
        self._connection.close()
