"""The placement service over a real Valkey and a real SeaweedFS, with agents that run in threads of the test."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from tests.support import S3, wait_until
from tidemill.doorbell import Doorbell, FlowerEvents
from tidemill.errors import ServiceUnavailable
from tidemill.ledger import connect
from tidemill.ledger.api import AgentReport, NewJob, RunnerReport
from tidemill.models import FunctionRecord, FunctionSpec, JobInput, JobState, PoolSpec
from tidemill.record import Record
from tidemill.record.ending import End, finish
from tidemill.settings import PlacementSettings, RedisSettings, Settings, StoreSettings
from tidemill.store import open_store
from tidemill_placement.assembly import assemble
from tidemill_placement.scalers import AgentState
from tidemill_placement.service import Service


class Threads:
    """A scaler whose agents are threads that claim, sleep for nobody, and end jobs well."""

    def __init__(self, ledger: Any, record: Record) -> None:
        self._ledger = ledger
        self._record = record
        self._stop: dict[str, threading.Event] = {}
        self._threads: dict[str, threading.Thread] = {}
        self.killed: set[str] = set()

    def serves(self, pool: PoolSpec) -> bool:
        return pool.where == "local"

    def observe(self, pool: PoolSpec) -> list[AgentState]:
        return [
            AgentState(name, "running" if thread.is_alive() else "ended", 0.0)
            for name, thread in self._threads.items()
            if name.startswith(pool.name + "-")
        ]

    def start(self, pool: PoolSpec, agent: str) -> None:
        self._stop[agent] = threading.Event()
        self._threads[agent] = threading.Thread(target=self._live, args=(pool, agent), daemon=True)
        self._threads[agent].start()

    def stop(self, agent: str) -> None:
        if agent in self._stop:
            self._stop[agent].set()

    def end(self) -> None:
        for agent in self._stop:
            self.stop(agent)
        for thread in self._threads.values():
            thread.join(10)

    @property
    def alive(self) -> list[str]:
        return [name for name, thread in self._threads.items() if thread.is_alive()]

    def _live(self, pool: PoolSpec, agent: str) -> None:
        runners: dict[str, RunnerReport] = {}
        while not self._stop[agent].wait(0.02):
            try:
                self._ledger.heartbeat(
                    AgentReport(agent, pool.name, pool.slots, runners=tuple(runners.values()), started_at=1.0)
                )
                if agent in self.killed:
                    return
                for claim in self._ledger.claim(agent, 5, 5.0):
                    finish(self._ledger, self._record, claim, None, End("succeeded", run_s=0.01))
                    name = claim.job.function
                    runners[name] = RunnerReport(name, "r1", pool.slots, 0, 0.0)
            except ServiceUnavailable:
                continue
        self._ledger.agent_gone(agent)


class Site:
    """A ledger, a record, a scaler, and placement services in threads."""

    def __init__(self, redis_url: str, s3: S3, bucket: str) -> None:
        store = StoreSettings(
            endpoint=s3.endpoint,
            access_key=s3.access_key,
            secret_key=SecretStr(s3.secret_key),
            region=s3.region,
            bucket=bucket,
        )
        self.settings = Settings(
            redis=RedisSettings(url=SecretStr(redis_url)),
            store=store,
            placement=PlacementSettings(idle_timeout_s=0.5, sweep_s=0.2, leader_ttl_s=1.0),
        )
        self.url = redis_url
        self.ledger = connect(redis_url)
        self.record = Record(open_store(store), bucket)
        self.record.prepare()
        self.scaler = Threads(self.ledger, self.record)

    def setup(self, **pool: Any) -> None:
        spec = FunctionSpec(name="ocr", handler="m:f")
        function = FunctionRecord(spec=spec, revision="r1", deployed_at=1, triggers_since=0)
        self.record.put_function(function)
        self.record.put_pool(PoolSpec.model_validate({"name": "p", "slots": 2, "agents": {"max": 2}, **pool}))

    def submit(self, count: int, offset: int = 0) -> list[str]:
        ids = [f"{offset + number:032x}" for number in range(count)]
        for job_id in ids:
            source = JobInput(bucket="inbox", key=job_id, etag="e", size=10)
            self.ledger.submit(NewJob(job_id, "ocr", source, "r1"))
        return ids

    def done(self, ids: list[str]) -> bool:
        jobs = [self.ledger.job(job_id) for job_id in ids]
        return all(job is not None and job.state is JobState.succeeded for job in jobs)

    @contextmanager
    def service(self) -> Iterator["Running"]:
        running = Running(self)
        try:
            yield running
        finally:
            running.end()


class Running:
    """One placement service in a thread of its own."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    async def _main(self) -> None:
        site = self._site
        self._loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(2) as ends, ThreadPoolExecutor(2) as finishes:
            bell, events = Doorbell(site.url), FlowerEvents(site.url)
            self.service: Service = assemble(
                site.settings, connect(site.url), site.record, bell, events, ends, finishes
            )
            self.service.planner._crew.scalers = [site.scaler]
            self._ready.set()
            await self.service.run()
            bell.close()
            events.close()

    def freeze(self) -> None:
        """The loop stands still, as in a process that is stopped."""
        self._thaw = threading.Event()
        self._loop.call_soon_threadsafe(self._thaw.wait, 20)

    def thaw(self) -> None:
        self._thaw.set()

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self.service.stop.set)
        self._thread.join(20)
        assert not self._thread.is_alive()


@pytest.fixture
def site(redis_url: str, s3: S3, bucket: str) -> Iterator[Site]:
    found = Site(redis_url, s3, bucket)
    yield found
    found.scaler.end()


def _epoch(site: Site) -> Callable[[], bool]:
    return lambda: site.ledger.epoch() is not None and "ocr" in site.ledger.functions()


def test_a_backlog_is_worked_off_by_started_agents_and_all_stop_when_idle(site: Site) -> None:
    site.setup()
    with site.service():
        wait_until(_epoch(site))
        ids = site.submit(60)
        wait_until(lambda: site.done(ids), 30)
        assert len(site.scaler.alive) in (1, 2)
        wait_until(lambda: not site.scaler.alive, 20)
        wait_until(lambda: site.ledger.scaling() == {"p": 0})


def test_a_warm_system_takes_jobs_by_grants(site: Site) -> None:
    site.setup(idle_timeout=30)
    with site.service():
        wait_until(_epoch(site))
        ids = site.submit(4)
        wait_until(lambda: site.done(ids), 30)

        offset = iter(range(100, 10_000))

        def granted() -> bool:
            source = JobInput(bucket="inbox", key="x", etag="e", size=1)
            return site.ledger.submit(NewJob(f"{next(offset):032x}", "ocr", source, "r1")).agent is not None

        wait_until(granted, 10, interval_s=0.1)


def test_jobs_of_an_agent_that_died_are_run_by_another(site: Site) -> None:
    site.setup(agents={"max": 1})
    with site.service():
        wait_until(_epoch(site))
        ids = site.submit(1)
        wait_until(lambda: site.done(ids), 30)
        site.scaler.killed |= set(site.scaler.alive)
        more = site.submit(20, offset=100)
        wait_until(lambda: site.done(more), 30)


def test_another_replica_takes_over_and_the_frozen_leader_stands_back(site: Site) -> None:
    site.setup()
    with site.service() as first:
        wait_until(lambda: first.service.leads and _epoch(site)())
        with site.service() as second:
            first.freeze()
            wait_until(lambda: second.service.leads, 15)
            first.thaw()
            wait_until(lambda: not first.service.leads, 10)
            ids = site.submit(10)
            wait_until(lambda: site.done(ids), 30)
            assert second.service.leads


def test_a_flushed_redis_is_rebuilt_and_work_goes_on(site: Site) -> None:
    site.setup()
    with site.service() as running:
        wait_until(_epoch(site))
        ids = site.submit(5)
        wait_until(lambda: site.done(ids), 30)
        site.ledger._connection.calls.flushdb()
        wait_until(lambda: (site.ledger.epoch() or (0, 0))[0] == 2 and _epoch(site)(), 20)
        wait_until(lambda: all(site.ledger.known(ids)))
        wait_until(lambda: site.done(ids), 20)  # they are listed again, beside the work
        more = site.submit(5, offset=50)
        wait_until(lambda: site.done(more), 30)
        assert running.service.leads


def test_the_pools_file_is_put_in_place_at_the_start(site: Site, tmp_path: Path) -> None:
    from tidemill_placement.assembly import _prepared

    path = tmp_path / "pools.yaml"
    path.write_text("pools:\n  - name: filed\n    slots: 3\n")
    assert asyncio.run(_prepared(site.record, site.ledger, path, asyncio.Event()))
    assert site.ledger.pools()["filed"].spec.slots == 3
    assert [pool.spec.name for pool in site.record.pools()] == ["filed"]
    version = site.ledger.version()
    assert asyncio.run(_prepared(site.record, site.ledger, path, asyncio.Event()))
    assert site.ledger.version() == version
    site.record.drain_pool("filed", True)
    assert asyncio.run(_prepared(site.record, site.ledger, path, asyncio.Event()))
    assert site.ledger.pools()["filed"].draining, "the file does not say, the bucket does"
