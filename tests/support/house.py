"""A planner over the ledger in memory: its scaler, its bell and its agents are played by hand."""

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from tidemill.ledger.api import AgentReport, Ended, NewJob, RunnerReport
from tidemill.models import FunctionRecord, FunctionSpec, JobInput, JobState, PoolSpec
from tidemill.record import Record
from tidemill.testing import MemoryLedger, MemoryStore
from tidemill_placement.core import Rules
from tidemill_placement.crew import Crew
from tidemill_placement.endings import Endings
from tidemill_placement.lead import Lead
from tidemill_placement.planner import Planner
from tidemill_placement.scalers import AgentState, ScalerError
from tidemill_placement.servertime import ServerTime
from tidemill_placement.sweeper import Sweeper

START = 1_700_000_000.0


@dataclass
class Bell:
    """Counts rings."""

    rings: list[tuple[str, str]] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)

    def ring(self, pool: str, agent: str, job_id: str = "", function: str = "") -> bool:
        self.rings.append((agent, job_id))
        return True

    def forget(self, pool: str, agent: str) -> None:
        self.forgotten.append(agent)


@dataclass
class Processes:
    """A scaler whose processes are entries in a dict."""

    states: dict[str, AgentState] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)
    broken: str = ""
    starts: int = 0

    def serves(self, pool: PoolSpec) -> bool:
        return pool.where == "local"

    def observe(self, pool: PoolSpec) -> list[AgentState]:
        if self.broken:
            raise ScalerError(self.broken)
        return [state for name, state in self.states.items() if name.startswith(pool.name + "-")]

    def start(self, pool: PoolSpec, agent: str) -> None:
        self.starts += 1
        if self.broken:
            raise ScalerError(self.broken)
        self.states[agent] = AgentState(agent, "running", 0.0)

    def stop(self, agent: str) -> None:
        self.stopped.append(agent)

    def end(self, agent: str, failed: bool = False) -> None:
        self.states[agent] = AgentState(agent, "ended", 0.0, "status 1", failed)


class Now:
    """Runs what it is given at once, in place of a thread pool."""

    def submit(self, work: Any, /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(work(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - as an executor does
            future.set_exception(error)
        return future


class House:
    """A ledger, a record, a planner, and a clock to turn."""

    def __init__(self) -> None:
        self.now = START
        self.ledger = MemoryLedger(lambda: self.now)
        self.record = Record(MemoryStore(), "tidemill")
        self.record.prepare()
        self.ledger.begin_epoch(1, 1)
        self.bell, self.processes = Bell(), Processes()
        numbers = iter(range(1, 1000))
        self.crew = Crew([self.processes], self.ledger.agent_gone, lambda pool: f"{pool}-{next(numbers):06x}")
        self.lead = Lead()
        self.endings = Endings(self.ledger, self.record, "me", 15.0, self.lead)
        clock = ServerTime(lambda: self.now)
        workers: Any = Now()
        rules = Rules(idle_timeout_s=10.0)
        self.planner = Planner(
            self.ledger, self.record, self.bell, self.endings, self.crew, workers, rules, 1.0, clock, self.lead
        )
        self.sweeper = Sweeper(self.ledger, self.endings, self.bell, "me", 15.0, 15.0, workers, lead=self.lead)
        self._position = "0"

    def function(self, name: str = "ocr", revision: str = "r1", **spec: Any) -> FunctionRecord:
        record = FunctionRecord(
            spec=FunctionSpec(name=name, handler="m:f", **spec), revision=revision, deployed_at=0, triggers_since=0
        )
        self.record.put_function(record)
        self.ledger.put_function(record)
        return record

    def pool(self, name: str = "p", slots: int = 1, most: int = 2, **spec: Any) -> None:
        price = {"usd_per_hour": 0.1}
        self.ledger.put_pool(
            PoolSpec.model_validate({"name": name, "slots": slots, "price": price, "agents": {"max": most}, **spec})
        )

    def submit(self, job_id: str, function: str = "ocr") -> None:
        source = JobInput(bucket="inbox", key=job_id, etag="e", size=10, last_modified=1)
        self.ledger.submit(NewJob(job_id, function, source, "r1"))

    def beat(self, agent: str, *runners: RunnerReport, slots: int = 1, idle_s: float = 0.0) -> None:
        pool = agent.rpartition("-")[0]
        self.ledger.heartbeat(AgentReport(agent, pool, slots, runners=runners, started_at=START, idle_s=idle_s))

    def turn(self, after_s: float = 0.0) -> float:
        self.now += after_s
        lines = self.ledger.transitions(self._position)
        self._position = lines[-1].position if lines else self._position
        return self.planner.turn(lines).again_s

    def run(self, agent: str, seconds: float = 1.0, *, told_once: bool = False) -> None:
        """The agent claims one job and ends it well; a small result is told once."""
        (claim,) = self.ledger.claim(agent, 1, 15.0)
        self.now += seconds
        ended = Ended("succeeded", run_s=seconds)
        if not told_once:
            self.ledger.commit(claim.token, ended, 15.0)
        self.ledger.published(claim.token, ended)

    def state(self, job_id: str) -> JobState:
        job = self.ledger.job(job_id)
        assert job is not None
        return job.state


def job_id(number: int) -> str:
    return f"{number:032x}"
