"""The sweep: what time has broken is mended, by the leader, every few seconds; its cost goes with what it finds.

What a sweep takes over is ended in threads, and the next sweeps do not wait for that: a large result may be copied for
minutes. Until then they keep its lease. How much is taken over is limited by what is in hand; the rest of the mending
is not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Protocol

import structlog

from tidemill.failpoints import failpoint
from tidemill.ledger.api import Claim, Ledger, Token
from tidemill_placement.endings import Endings
from tidemill_placement.lead import Lead
from tidemill_placement.view import pool_of

_IN_HAND = 200  # jobs at most; the end of the service waits for them
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
        self._in_hand: dict[str, Token] = {}  # by job id
        self._lock = threading.Lock()

    def sweep(self) -> int:
        """Sweep until nothing is left but what there is no hand for. Gives the number of things that were found.

        Raises:
            LedgerUnavailable: the next sweep finds what is left.
        """
        found, fence = 0, self._lead.fence
        self._keep_leases()
        while True:
            room = max(0, _IN_HAND - len(self._in_hand))
            swept = self._ledger.sweep(self._holder, self._lease_s, self._agent_ttl_s, seized=room, fence=fence)
            failpoint("sweep.swept")
            for agent in swept.ring:
                self._bell.ring(self._pool(agent), agent)
            for agent in swept.dead_agents:
                log.warning("agent.silent", agent=agent)
            failpoint("sweep.rung")
            if swept.requeued:
                log.info("sweep.requeued", jobs=len(swept.requeued))
            functions = self._ledger.functions() if swept.exhausted else {}
            for claim in swept.exhausted:
                self._end(claim, partial(self._endings.exhausted, claim, functions.get(claim.job.function)))
            for claim in swept.unpublished:
                self._end(claim, partial(self._endings.unpublished, claim))
            parts = (swept.requeued, swept.exhausted, swept.unpublished, swept.ring, swept.dead_agents)
            found += sum(map(len, parts))
            if not swept.more:
                break
        return found

    def _keep_leases(self) -> None:
        """Without their leases they would be taken over once more, by us or the next leader, and be copied twice."""
        with self._lock:
            tokens = list(self._in_hand.values())
        if tokens:
            self._ledger.renew(tokens, self._lease_s)

    def _end(self, claim: Claim, work: Callable[[], object]) -> None:
        """End a job in a thread, unless that is on its way already."""
        job_id = claim.token.job_id
        with self._lock:
            known = job_id in self._in_hand
            self._in_hand[job_id] = claim.token
        if not known:
            self._workers.submit(work).add_done_callback(partial(self._ended, job_id))

    def _ended(self, job_id: str, future: Future[object]) -> None:
        with self._lock:
            del self._in_hand[job_id]
        if future.cancelled():
            return  # the service ends; a later sweep finds the job when its lease is over
        if (error := future.exception()) is not None:
            # A later sweep finds the job again when its lease is over.
            log.error("sweep.end_failed", job_id=job_id, exc_info=error)
