"""The placement service: one leader plans, sweeps, keeps the epoch and feeds Flower; others wait to take over.

    renew   keeps the leader's lease                         every third of it
    watch   blocks on the stream of transitions              wakes feed; plan when there is something to place
    plan    a turn at each wake, at the latest after a tick  (Planner)
    sweep   expired leases, lost doorbells, dead agents      every `sweep_s`
    keep    the epoch in Redis and bucket, the rebuild       every 10 s, at once when Redis says that it has none
    feed    Flower's rows
    tidy    what has had its time goes                       a little now and then (Retention)
    recall  commits that the ledger does not know            every hour (forgotten.py)
    relist  finished jobs, after a rebuild                   once (relisting.py)
    mirror  functions and pools that it has otherwise        every minute (rebuild.py)

Each is a small loop over blocking calls in threads. An outage of Redis or the store ends none of them: they log, pause
and try again. A leader that could not renew in time stops all of them before its lease is over; one that was paused for
longer finds its calls refused, because they carry the fence of its lease (`lead.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

import structlog

from tidemill.errors import LedgerUnavailable, ServiceUnavailable
from tidemill.ledger.api import Ledger, Transition
from tidemill.models import JobState
from tidemill_placement.epoch import Deposed, EpochKeeper
from tidemill_placement.feeder import Feeder
from tidemill_placement.lead import Lead
from tidemill_placement.planner import Planner
from tidemill_placement.retention import Retention
from tidemill_placement.servertime import ServerTime
from tidemill_placement.sweeper import Sweeper

LEASE = "placement"
_EPOCH_S = 10.0
_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 5.0
_GAP_S = 0.02  # between two turns; lines that come in between are taken together
_REST = 1.5  # a turn that took t is followed by a rest of 1.5 t, so that planning never takes a whole core
_LONGEST_GAP_S = 0.1
_CHUNK = 500
_BLOCK_S = 1.0  # also how long the end of the service waits for the thread that blocks
_GATHER_S = 0.02  # after lines were read; those that come in between are read together
_FRESH_LINES = 20  # a longer read is a replay, and tells nothing of the server's clock
_LOOK_S = 2.0
_FEED_GAP_S = 0.1
_TIDY_S = 30.0  # until retention begins, and after it failed
_RECALL_FIRST_S, _RECALL_S = 600.0, 3600.0  # after a leader began, and between two
_MIRROR_S = 60.0
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds: the longest pause between turns, between sweeps, and the leader's lease."""

    tick_s: float = 1.0
    sweep_s: float = 2.0
    leader_ttl_s: float = 6.0


@dataclass(slots=True)
class Service:
    """Everything the service is made of. `run` returns when `stop` is set."""

    ledger: Ledger
    planner: Planner
    sweeper: Sweeper
    keeper: EpochKeeper
    feeder: Feeder | None
    retention: Retention
    recall: Callable[[], int]
    relist: Callable[[], int]
    mirror: Callable[[], None]
    clock: ServerTime
    lead: Lead
    holder: str
    timing: Timing = Timing()
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    leads: bool = False
    _lines: deque[Transition] = field(default_factory=deque)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _feed: asyncio.Event = field(default_factory=asyncio.Event)
    _no_epoch: asyncio.Event = field(default_factory=asyncio.Event)
    _rebuilt: asyncio.Event = field(default_factory=asyncio.Event)
    _position: str = "0"
    _waiting: int = 0  # jobs that the last turn left in the queue
    _tidy_rest_s: float = 0.0
    _recall_rest_s: float = 0.0

    async def run(self) -> None:
        """Wait for the lease, lead, and again, until stopped."""
        stopped = asyncio.create_task(self.stop.wait())
        try:
            while not self.stop.is_set():
                if await self._acquire():
                    leading = asyncio.create_task(self._lead())
                    await asyncio.wait({leading, stopped}, return_when=asyncio.FIRST_COMPLETED)
                    leading.cancel()
                    await asyncio.gather(leading, return_exceptions=True)
                    self._log_end(leading)
                    self.leads = False
                    await self._resign()
                await asyncio.wait({stopped}, timeout=self.timing.leader_ttl_s / 3)
        finally:
            stopped.cancel()

    async def _acquire(self) -> bool:
        try:
            fence = await asyncio.to_thread(self.ledger.acquire, LEASE, self.holder, self.timing.leader_ttl_s)
        except ServiceUnavailable as error:
            log.warning("leader.lease_failed", error=str(error))
            return False
        if fence is None:
            return False
        self.lead.fence = fence
        return True

    async def _resign(self) -> None:
        try:
            await asyncio.to_thread(self.ledger.resign, LEASE, self.holder)
        except ServiceUnavailable as error:
            log.warning("leader.resign_failed", error=str(error))

    async def _lead(self) -> None:
        log.info("leader.begins", holder=self.holder)
        self.leads = True
        await asyncio.to_thread(self.planner.reset)
        self._begin_anew()
        self._rebuilt.set()  # a relisting that broke off with our last lease
        self._tidy_rest_s = _TIDY_S
        async with asyncio.TaskGroup() as group:
            group.create_task(self._renew())
            await self._first_epoch()
            group.create_task(self._loop("watch", self._watch))
            group.create_task(self._loop("plan", self._plan))
            group.create_task(self._loop("sweep", self._sweep))
            group.create_task(self._loop("keep", self._keep))
            await asyncio.to_thread(self.retention.reset)
            group.create_task(self._loop("tidy", self._tidy))
            self._recall_rest_s = _RECALL_FIRST_S
            group.create_task(self._loop("recall", self._recall))
            group.create_task(self._loop("relist", self._relist))
            group.create_task(self._loop("mirror", self._mirror))
            if self.feeder is not None:
                group.create_task(self._loop("feed", self._feed_flower))

    def _begin_anew(self) -> None:
        self._lines.clear()
        self._position = "0"
        self._wake.set()

    def _log_end(self, leading: asyncio.Task[None]) -> None:
        error = None if leading.cancelled() else leading.exception()
        if error is not None:
            why = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error
            log.warning("leader.ends", holder=self.holder, why=str(why) or repr(why))
        else:
            log.info("leader.ends", holder=self.holder)

    async def _renew(self) -> None:
        ttl_s = self.timing.leader_ttl_s
        held = time.monotonic()
        while True:
            await asyncio.sleep(ttl_s / 3)
            asked = time.monotonic()
            try:
                await self._renew_once()
            except ServiceUnavailable as error:
                log.warning("leader.lease_failed", error=str(error))
                if time.monotonic() - held > ttl_s:
                    raise Deposed("the lease could not be renewed in time") from error
                continue
            held = asked

    async def _renew_once(self) -> None:
        fence = await asyncio.to_thread(self.ledger.acquire, LEASE, self.holder, self.timing.leader_ttl_s)
        if fence is None:
            raise Deposed("somebody else has the lease")
        if fence != self.lead.fence:
            # Redis lost the lease, or it was over before we came: what was refused meanwhile is to be done again.
            self.lead.fence = fence
            await asyncio.to_thread(self.planner.reset)
            self._begin_anew()

    async def _first_epoch(self) -> None:
        """Without an epoch no call works, so it comes first, with its rebuild. Later ones go on beside the work."""
        pause_s = _PAUSE_S
        while True:
            try:
                if await asyncio.to_thread(self.ledger.epoch) is None:
                    await self._keep_once()
                return
            except ServiceUnavailable as error:
                log.warning("epoch.unknown", error=str(error))
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _loop(self, name: str, turn: Callable[[], Awaitable[None]]) -> None:
        """Repeat a turn for ever; what goes wrong is logged, and the next turn is another try."""
        pause_s = _PAUSE_S
        while True:
            try:
                await turn()
                pause_s = _PAUSE_S
            except Deposed:
                raise
            except (ServiceUnavailable, OSError) as error:
                if isinstance(error, LedgerUnavailable) and error.error_code == "no_epoch":
                    self._no_epoch.set()
                log.warning("loop.failed", loop=name, error=str(error))
            except Exception:
                log.exception("loop.broke", loop=name)
            else:
                continue
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _watch(self) -> None:
        after = self._position
        lines = await asyncio.to_thread(self.ledger.transitions, after, _BLOCK_S, _CHUNK)
        if not lines or after != self._position:  # begun anew meanwhile: they will be read again
            return
        self._position = lines[-1].position
        if after != "0" and len(lines) <= _FRESH_LINES:
            self.clock.saw(lines[-1].at)
        self._lines.extend(lines)
        if _waits(lines) or (self._waiting and _frees(lines)):
            self._wake.set()
        self._feed.set()
        await asyncio.sleep(_GATHER_S)

    async def _plan(self) -> None:
        self._wake.clear()
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        began = time.monotonic()
        turn = await asyncio.to_thread(self.planner.turn, lines)
        took_s = time.monotonic() - began
        self._waiting = turn.waiting
        if turn.waiting and _frees(self._lines):  # perhaps too late for this turn
            self._wake.set()
        gap_s = min(max(_GAP_S, _REST * took_s), _LONGEST_GAP_S)
        if turn.released or turn.waiting or self._wake.is_set():
            await asyncio.sleep(gap_s)
        try:
            async with asyncio.timeout(turn.again_s):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _sweep(self) -> None:
        await asyncio.to_thread(self.sweeper.sweep)
        await asyncio.sleep(self.timing.sweep_s)

    async def _tidy(self) -> None:
        # The rest comes first: a new leader has better things to do.
        await asyncio.sleep(self._tidy_rest_s)
        self._tidy_rest_s = _TIDY_S
        self._tidy_rest_s = await asyncio.to_thread(self.retention.turn)

    async def _recall(self) -> None:
        await asyncio.sleep(self._recall_rest_s)
        self._recall_rest_s = _RECALL_S
        await asyncio.to_thread(self.recall)

    async def _relist(self) -> None:
        await self._rebuilt.wait()
        self._rebuilt.clear()
        try:
            await asyncio.to_thread(self.relist)
        except Exception:
            self._rebuilt.set()
            raise

    async def _mirror(self) -> None:
        await asyncio.sleep(_MIRROR_S)
        await asyncio.to_thread(self.mirror)

    async def _keep(self) -> None:
        await self._keep_once()
        try:
            async with asyncio.timeout(_EPOCH_S):
                await self._no_epoch.wait()
        except TimeoutError:
            return

    async def _keep_once(self) -> None:
        self._no_epoch.clear()
        if await asyncio.to_thread(self.keeper.keep):
            await self._renew_once()  # a Redis that is new has lost our lease too
            await asyncio.to_thread(self.planner.reset)
            self._begin_anew()
            self._rebuilt.set()

    async def _feed_flower(self) -> None:
        assert self.feeder is not None
        looked = -_LOOK_S
        while True:
            if time.monotonic() - looked >= _LOOK_S:
                looked = time.monotonic()
                await asyncio.to_thread(self.feeder.look)
            self._feed.clear()
            await asyncio.to_thread(self.feeder.feed)
            await asyncio.sleep(_FEED_GAP_S)
            try:
                async with asyncio.timeout(_LOOK_S):
                    await self._feed.wait()
            except TimeoutError:
                continue


def _waits(lines: Iterable[Transition]) -> bool:
    """Whether a job came into the queue and stayed there: one that took a grant has its agent already."""
    queued: set[str] = set()
    for line in lines:
        if line.state is JobState.queued:
            queued.add(line.job_id)
        else:
            queued.discard(line.job_id)
    return bool(queued)


def _frees(lines: Iterable[Transition]) -> bool:
    """Whether a job left its slot."""
    return any(line.state is JobState.committed or line.state.terminal for line in lines)
