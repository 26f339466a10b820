"""What the ledger's tests share: a fake clock, and a ledger with the short cuts that most tests need."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from tidemill.ledger.api import AgentReport, Claim, Ended, Ledger, NewJob, Token
from tidemill.models import JobInput, Placement, object_job_id

_numbers = itertools.count()


class FakeClock:
    """Seconds since 1970 that move when the test says so."""

    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class World:
    """A ledger with an epoch, a way to let time pass, and the short cuts that most tests need."""

    ledger: Ledger
    advance: Callable[[float], None]
    kind: str
    again: Callable[[], Ledger]  # another connection to the same ledger
    epoch: int = 1

    def new(self, number: int | None = None, *, function: str = "ocr", **values: object) -> NewJob:
        """A job about an object; the same number is the same object."""
        key = f"in/{next(_numbers) if number is None else number}.png"
        given = JobInput(bucket="scans", key=key, etag="0" * 32, size=100, last_modified=1_700_000_000)
        job_id = object_job_id(function, "local", given.bucket, key, given.etag, given.size, given.last_modified)
        return NewJob(job_id, function, given, "abcdef012345", **values)  # type: ignore[arg-type]

    def submit(self, **values: object) -> str:
        """Submit a new job and give its id."""
        job = self.new(**values)  # type: ignore[arg-type]
        assert self.ledger.submit(job).created
        return job.id

    def agent(self, name: str = "gpu-000001", pool: str = "gpu", **values: object) -> str:
        """Register an agent and give its name."""
        self.ledger.heartbeat(AgentReport(name, pool, 4, **values))  # type: ignore[arg-type]
        return name

    def claimed(self, *, lease_s: float = 60.0, agent: str = "gpu-000001", **values: object) -> Claim:
        """A new job in the hands of an agent."""
        job_id = self.submit(**values)
        return self.claim(job_id, agent=agent, lease_s=lease_s)

    def claim(self, job_id: str, *, agent: str = "gpu-000001", lease_s: float = 60.0) -> Claim:
        """Release a queued job to an agent and claim it."""
        self.agent(agent)
        assert self.ledger.release(job_id, agent, Placement(pool="gpu"))
        (claim,) = self.ledger.claim(agent, 1, lease_s)
        assert claim.job.id == job_id
        return claim

    def finish(self, token: Token, state: str = "succeeded", **values: object) -> None:
        """Commit and publish."""
        ended = Ended(state, **values)  # type: ignore[arg-type]
        assert self.ledger.commit(token, ended, 60.0)
        assert self.ledger.published(token, ended)

    def state(self, job_id: str) -> str:
        """The state of a job that is there."""
        job = self.ledger.job(job_id)
        assert job is not None
        return str(job.state)
