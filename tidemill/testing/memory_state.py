"""What the ledger's twin keeps of a job and of an agent."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemill.ledger.api import AgentReport, Ended, NewJob
from tidemill.models import Cost, Event, Job, JobState, Placement, Progress


@dataclass
class Held:
    """A job as the twin keeps it. Times in microseconds."""

    new: NewJob
    created: int
    submitted: int
    accepted: int  # epoch of its submit
    available: int
    look: bool
    state: JobState = JobState.queued
    attempt: int = 0
    counted: int = 0  # epoch in which attempts were counted
    epoch: int = 0
    nonce: str | None = None
    lease: int = 0
    agent: str | None = None
    pool: str | None = None
    last_agent: str | None = None
    released: int | None = None
    started: int | None = None
    done: int | None = None
    by: str | None = None
    cancel: bool = False
    progress: Progress | None = None
    placement: Placement | None = None
    granted: dict[str, int] | None = None  # the grants that it used one of
    end: Ended | None = None
    history: list[Event] = field(default_factory=list)

    def job(self) -> Job:
        """The job as readers see it."""
        new, end = self.new, self.end
        shown = end if self.state.terminal else None
        return Job(
            id=new.id,
            function=new.function,
            revision=(end.revision if end else None) or new.revision,
            generation=new.generation,
            state=self.state,
            input=new.input,
            params=dict(new.params),
            owner=new.owner,
            attempt=self.attempt,
            pool=self.pool,
            agent=self.agent,
            created_at=self.created / 1e6,
            released_at=_seconds(self.released),
            started_at=_seconds(self.started),
            finished_at=_seconds(self.done),
            progress=self.progress,
            placement=self.placement,
            cost=Cost(usd=end.usd, gpu_seconds=end.gpu_seconds) if end else Cost(),
            outputs=shown.outputs if shown else (),
            error=shown.error if shown else None,
            history=tuple(self.history),
            cancel_requested=self.cancel,
        )


@dataclass
class Agent:
    """An agent as the twin keeps it."""

    report: AgentReport
    seen: int
    wanted: dict[str, int] | None = None
    drain: bool = False


def _seconds(micros: int | None) -> float | None:
    return None if micros is None else micros / 1e6
