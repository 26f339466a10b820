"""An agent: the process that owns one GPU, or the CPU slots of one host, in a pool.

It is the Celery worker itself (`tidemill_workers.agent.app`). A doorbell makes it ask the ledger for released jobs
until there are none; heartbeats tell the ledger what it has and bring back which runners placement wants. It holds all
credentials and does all I/O; functions run in runner processes that hold none.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from tidemill.errors import ServiceUnavailable
from tidemill.ledger.api import AgentReport, Ledger
from tidemill.models import FunctionRecord, PoolSpec
from tidemill.record import Record
from tidemill.settings import AgentSettings
from tidemill_workers.agent.code import CodeCache
from tidemill_workers.agent.fleet import Fleet
from tidemill_workers.agent.leases import LeaseKeeper
from tidemill_workers.agent.runners import Runner
from tidemill_workers.agent.starting import Starter
from tidemill_workers.attempt import Attempt, Workshop
from tidemill_workers.environments import EnvironmentBuilder

log = structlog.get_logger(__name__)


class Agent:
    """One agent of a pool.

    Args:
        name: unique; `<pool>-<hex>`.
        pool: its pool as applied.
        ledger: live state.
        record: durable state.
        settings: leases, folders, limits.
        work_dir: an empty folder of its own (`work_folder`). When somebody removes it (a cleaner of /tmp), the agent
            can run nothing any more, and ends.
        end: ends the process in its usual way; called once at most.
    """

    def __init__(
        self,
        name: str,
        pool: PoolSpec,
        ledger: Ledger,
        record: Record,
        settings: AgentSettings,
        work_dir: Path,
        end: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGTERM),
    ) -> None:
        self.name = name
        self.pool = pool
        self._ledger = ledger
        self._record = record
        self._settings = settings
        self._work_dir = work_dir
        self._end = end
        self._started_at = time.time()
        self._draining = threading.Event()
        self._stopped = threading.Event()
        self._beat_now = threading.Event()
        self._ready = False
        self._idle_since = time.monotonic()
        self._active = 0
        self._mutex = threading.Lock()
        self._functions: tuple[int, dict[str, FunctionRecord]] = (-1, {})
        for part in ("jobs", "runners"):
            (work_dir / part).mkdir()
            (work_dir / part).chmod(0o755)
        starter = Starter(
            ledger,
            CodeCache(work_dir / "code", record),
            EnvironmentBuilder(settings.environments_dir or default_environments()),
            work_dir / "runners",
            pool.env,
            settings.readable,
        )
        self._fleet: Fleet[Runner] = Fleet(pool.slots, starter.start)
        self._leases = LeaseKeeper(ledger, settings.lease_s, settings.heartbeat_s)
        self._shop = Workshop(
            agent=name,
            pool=pool.name,
            ledger=ledger,
            record=record,
            fleet=self._fleet,
            leases=self._leases,
            find=self.find,
            price=self._price,
            work_dir=work_dir / "jobs",
            lease_s=settings.lease_s,
            inline_bytes=settings.inline_bytes,
            log_bytes=settings.log_bytes,
            draining=self._draining.is_set,
        )
        self._heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    # -- what the Celery worker calls ----------------------------------------------------------------------------
    def start(self) -> None:
        """The worker takes doorbells from now on."""
        self._ready = True
        self._heart.start()

    def answer(self) -> int:
        """Work on released jobs until the ledger has none for this agent. Gives how many were worked on."""
        done = 0
        while not self._draining.is_set():
            try:
                claims = self._ledger.claim(self.name, 1, self._settings.lease_s)
            except ServiceUnavailable as error:
                log.warning("agent.claim_failed", error=str(error))  # the sweep rings again
                break
            if not claims:
                break
            with self._mutex:
                self._active += 1
            self._beat_now.set()
            try:
                for claim in claims:
                    log.debug("job.claimed", job_id=claim.token.job_id, function=claim.job.function)
                    Attempt(self._shop, claim).work()
                    done += 1
            finally:
                with self._mutex:
                    self._active -= 1
                    self._idle_since = time.monotonic()
                self._beat_now.set()
        return done

    def drain(self) -> None:
        """Take no more jobs. Running ones may end within `drain_s`, then they are given back."""
        if self._draining.is_set():
            return
        self._draining.set()
        log.info("agent.draining", active=self._active)
        try:
            self._ledger.drain_agent(self.name)
        except ServiceUnavailable as error:
            log.warning("agent.drain_unsaid", error=str(error))
        threading.Thread(target=self._end_runs, name="drain", daemon=True).start()

    def stop(self) -> None:
        """The worker has ended: stop runners, leave the ledger, remove the work folder."""
        self._draining.set()
        self._fleet.close()
        self._stopped.set()
        self._beat_now.set()
        self._leases.close()
        try:
            self._ledger.agent_gone(self.name)
        except ServiceUnavailable as error:
            log.warning("agent.leave_unsaid", error=str(error))

    # -- inside ----------------------------------------------------------------------------------------------------
    def _end_runs(self) -> None:
        deadline = time.monotonic() + self._settings.drain_s
        while self._active and time.monotonic() < deadline:
            time.sleep(0.05)
        for lease in self._leases.held():
            lease.interrupt()

    def find(self, name: str, version: int | None = None) -> FunctionRecord | None:
        """Give the deployed function, or None when it was deleted: the bucket has the last word, for a ledger that was
        lost knows none until it is restored. `version`: the ledger's, when the caller has just heard it.

        Raises:
            ServiceUnavailable: nobody can say.
        """
        if (found := self._mirrored(name, version)) is not None:
            return found
        stored = self._record.get_function(name)
        return stored if stored is not None and stored.deleted_at is None else None

    def _mirrored(self, name: str, version: int | None = None) -> FunctionRecord | None:
        """The function as the ledger has it, from a cache that the ledger's version number keeps true."""
        if version is None:
            version = self._ledger.version()
        if self._functions[0] != version:
            self._functions = (version, self._ledger.functions())
        return self._functions[1].get(name)

    def _price(self) -> tuple[float, bool]:
        price = self.pool.price
        usd_per_hour = 0.0 if price == "catalogue" else price.usd_per_hour
        return usd_per_hour / 3600 / self.pool.slots, self.pool.gpu is not None

    def report(self) -> AgentReport:
        """What the next heartbeat says."""
        state = "draining" if self._draining.is_set() else "ready" if self._ready else "starting"
        with self._mutex:
            idle_s = 0.0 if self._active else time.monotonic() - self._idle_since
        return AgentReport(
            name=self.name,
            pool=self.pool.name,
            slots=self.pool.slots,
            host=socket.gethostname(),
            pid=os.getpid(),
            state=state,  # type: ignore[arg-type]
            runners=self._fleet.reports(),
            started_at=self._started_at,
            idle_s=idle_s,
        )

    def _beat(self) -> None:
        """Heartbeats, at once when something changed (but at most five a second), else every `heartbeat_s`."""
        while not self._stopped.is_set():
            if not self._draining.is_set() and not (self._work_dir / "jobs").is_dir():
                log.error("agent.work_folder_gone", folder=str(self._work_dir))
                self.drain()
                self._end()
            try:
                reply = self._ledger.heartbeat(self.report())
                if reply.drain:
                    self.drain()
                elif reply.told and not self._draining.is_set():  # not told: nobody has decided yet, keep what is warm
                    self._fleet.adjust(reply.wanted, self._mirrored)
            except ServiceUnavailable as error:
                log.warning("agent.heartbeat_failed", error=str(error))
            self._stopped.wait(0.2)
            self._beat_now.wait(self._settings.heartbeat_s)
            self._beat_now.clear()


def default_environments() -> Path:
    """Give the folder of virtual environments that all agents of a user share."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "tidemill" / "environments"
