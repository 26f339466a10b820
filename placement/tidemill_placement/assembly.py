"""Puts the service together from settings, and runs it until a signal."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import structlog
import uvloop

from tidemill.doorbell import Doorbell, FlowerEvents
from tidemill.errors import ServiceUnavailable
from tidemill.ledger import connect
from tidemill.ledger.api import Ledger
from tidemill.models.files import load_pools
from tidemill.record import Record
from tidemill.settings import RetentionSettings, Settings
from tidemill.store import open_store
from tidemill_placement.core import Rules
from tidemill_placement.crew import Crew
from tidemill_placement.endings import Endings
from tidemill_placement.epoch import Deposed, EpochKeeper
from tidemill_placement.feeder import Feeder
from tidemill_placement.forgotten import finish_forgotten
from tidemill_placement.lead import Lead
from tidemill_placement.planner import Planner
from tidemill_placement.rebuild import Mirrors, Rebuilt, rebuild
from tidemill_placement.relisting import Relisting
from tidemill_placement.retention import Lifetimes, Retention
from tidemill_placement.scalers import LocalScaler, Scaler
from tidemill_placement.servertime import ServerTime
from tidemill_placement.service import LEASE, Service, Timing
from tidemill_placement.sweeper import Sweeper

_THREADS = 16
_ENDERS = 4  # threads that end jobs: so many for the planner, so many for the sweep
_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 5.0
log = structlog.get_logger(__name__)


def serve(settings: Settings) -> None:
    """Run the service; SIGTERM and SIGINT end it."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings))


async def _serve(settings: Settings) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(_THREADS, thread_name_prefix="placement"))
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    url = settings.redis.url.get_secret_value()
    ledger = connect(url, settings.redis.prefix)
    record = Record(open_store(settings.store), settings.store.bucket)
    with _threads("ends") as ends, _threads("finishes") as finishes:
        bell, events = Doorbell(url), FlowerEvents(url)
        service = assemble(settings, ledger, record, bell, events, ends, finishes)
        service.stop = stop
        if await _prepared(record, ledger, settings.pools_file, stop):
            log.info("placement.ready", holder=service.holder)
            await service.run()
        bell.close()
        events.close()
    log.info("placement.ended")


@contextmanager
def _threads(name: str) -> Iterator[ThreadPoolExecutor]:
    """Threads for ends of jobs. At the end those that were begun are waited for; the others are the next leader's."""
    workers = ThreadPoolExecutor(_ENDERS, thread_name_prefix=name)
    try:
        yield workers
    finally:
        workers.shutdown(cancel_futures=True)


def assemble(
    settings: Settings,
    ledger: Ledger,
    record: Record,
    bell: Doorbell,
    events: FlowerEvents | None,
    ends: Executor,
    finishes: Executor,
) -> Service:
    """Give the service for these settings. The planner ends jobs in threads of `ends`, the sweep in those of
    `finishes`: large copies must hold up no other ends."""
    placement, agent = settings.placement, settings.agent
    holder = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
    scalers: list[Scaler] = []
    if settings.local.control is not None:
        scalers.append(LocalScaler.connect(settings.local.control.get_secret_value(), grace_s=agent.drain_s + 5))
    lead = Lead()
    endings = Endings(ledger, record, holder, agent.lease_s, lead)
    clock = ServerTime()
    rules = Rules(
        value_of_time_usd_per_hour=placement.value_of_time_usd_per_hour, idle_timeout_s=placement.idle_timeout_s
    )
    mirrors = Mirrors(ledger, record)
    relisting = Relisting(ledger, record)
    crew = Crew(scalers, gone=ledger.agent_gone)
    return Service(
        ledger=ledger,
        planner=Planner(ledger, record, bell, endings, crew, ends, rules, placement.tick_s, clock, lead),
        sweeper=Sweeper(ledger, endings, bell, holder, agent.lease_s, agent.lease_s, finishes, lead=lead),
        keeper=EpochKeeper(
            ledger,
            record,
            partial(_rebuild, ledger, record, relisting, holder, placement.leader_ttl_s, settings.retention.jobs),
            lead=lead,
        ),
        feeder=Feeder(ledger, events) if events is not None else None,
        clock=clock,
        retention=Retention(ledger, record, lifetimes(settings.retention), lead=lead, ledger_clock=clock.now),
        recall=lambda: finish_forgotten(ledger, record),
        relist=relisting.run,
        mirror=lambda: mirrors.complete(lead.fence),
        lead=lead,
        holder=holder,
        timing=Timing(placement.tick_s, placement.sweep_s, placement.leader_ttl_s),
    )


def _rebuild(
    ledger: Ledger, record: Record, relisting: Relisting, holder: str, ttl_s: float, listed_s: float
) -> Rebuilt:
    """Rebuild under a lease that this ledger gave: one that was emptied knows none of the fences before."""
    fence = ledger.acquire(LEASE, holder, ttl_s)
    if fence is None:
        raise Deposed("somebody else has the lease")
    rebuilt = rebuild(ledger, record, fence, time.time() - listed_s)
    relisting.add(rebuilt.unlisted)
    return rebuilt


def lifetimes(retention: RetentionSettings) -> Lifetimes:
    """Give the lifetimes that the settings say; a request goes with its payload, results after their manifest."""
    return Lifetimes(
        requests=retention.payloads,
        payloads=retention.payloads,
        attempts=retention.attempts,
        logs=retention.logs,
        manifests=retention.manifests,
        jobs=retention.jobs,
        results=retention.manifests,
        code=retention.code,
        uploads=retention.uploads,
    )


async def _prepared(record: Record, ledger: Ledger, pools_file: Path | None, stop: asyncio.Event) -> bool:
    """Make the platform bucket and put the pools of the file in place, when the servers answer. False: stopped."""
    specs = load_pools(pools_file) if pools_file is not None else []
    pause_s = _PAUSE_S
    while not stop.is_set():
        try:
            await asyncio.to_thread(record.prepare)
            before = await asyncio.to_thread(ledger.pools)
            for spec in specs:
                kept = await asyncio.to_thread(record.put_pool, spec)
                if before.get(spec.name) != kept:
                    await asyncio.to_thread(partial(ledger.put_pool, spec, draining=kept.draining))
            return True
        except ServiceUnavailable as error:
            log.warning("placement.waits", error=str(error))
        try:
            async with asyncio.timeout(pause_s):
                await stop.wait()
        except TimeoutError:
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    return False
