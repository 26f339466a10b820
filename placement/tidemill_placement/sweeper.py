"""The sweep: what time has broken is mended, by the leader, every few seconds; its cost goes with what it finds."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, wait
from typing import Protocol

import structlog

from tidemill.failpoints import failpoint
from tidemill.ledger.api import Ledger
from tidemill_placement.endings import Endings
from tidemill_placement.lead import Lead
from tidemill_placement.view import pool_of

log = structlog.get_logger(__name__)


class Bell(Protocol):
    """What is needed of `tidemill.doorbell.Doorbell`."""

    def ring(self, pool: str, agent: str, job_id: str = "", function: str = "") -> bool: ...
    def forget(self, pool: str, agent: str) -> None: ...


class Sweeper:
    """Runs sweeps and does what they ask for.

    Args:
        agent_ttl_s: silence after which an agent is gone.
        pool: gives the pool of an agent.
    """

    def __init__(
        self,
        ledger: Ledger,
        endings: Endings,
        bell: Bell,
        holder: str,
        lease_s: float,
        agent_ttl_s: float,
        workers: Executor,
        pool: Callable[[str], str] = pool_of,
        lead: Lead | None = None,
    ) -> None:
        self._ledger = ledger
        self._endings = endings
        self._bell = bell
        self._holder = holder
        self._lease_s = lease_s
        self._agent_ttl_s = agent_ttl_s
        self._workers = workers
        self._pool = pool
        self._lead = lead or Lead()

    def sweep(self) -> int:
        """Sweep until nothing is left. Gives the number of things that were found."""
        found, fence = 0, self._lead.fence
        while True:
            swept = self._ledger.sweep(self._holder, self._lease_s, self._agent_ttl_s, fence=fence)
            failpoint("sweep.swept")
            for agent in swept.ring:
                self._bell.ring(self._pool(agent), agent)
            for agent in swept.dead_agents:
                log.warning("agent.silent", agent=agent)
            failpoint("sweep.rung")
            if swept.requeued:
                log.info("sweep.requeued", jobs=len(swept.requeued))
            functions = self._ledger.functions() if swept.exhausted else {}
            ends = [
                self._workers.submit(self._endings.exhausted, claim, functions.get(claim.job.function))
                for claim in swept.exhausted
            ]
            ends += [self._workers.submit(self._endings.unpublished, claim) for claim in swept.unpublished]
            wait(ends)
            for end in ends:
                end.result()
            parts = (swept.requeued, swept.exhausted, swept.unpublished, swept.ring, swept.dead_agents)
            found += sum(map(len, parts))
            if not swept.more:
                return found
