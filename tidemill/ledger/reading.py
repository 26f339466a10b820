"""Reading jobs: one, pages of them, counts, the backlog, and the stream of transitions."""

from __future__ import annotations

import time
from collections.abc import Iterator

from tidemill.ledger import wire
from tidemill.ledger.api import Backlog, JobPage, Transition
from tidemill.ledger.connection import Connection
from tidemill.ledger.cursors import read_cursor
from tidemill.models import Job, JobState

_CHUNK = 500  # jobs that one call looks at
_LOOK_S = 1.0  # a wait looks at the job itself this often, should its line be gone from the stream


class ReadingCalls:
    """What others ask about jobs."""

    _connection: Connection

    def job(self, job_id: str) -> Job | None:
        reply = self._connection.run("job", job_id)
        return wire.read_job(reply) if reply else None

    def jobs(
        self,
        *,
        state: JobState | None = None,
        function: str | None = None,
        since: float | None = None,
        reason: str | None = None,
        owner: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> JobPage:
        floor = "" if since is None else str(wire.micros(since))
        return self._page((state or "", function or "", floor, reason or "", owner or ""), cursor, limit)

    def _page(self, filters: tuple[str, ...], cursor: str | None, limit: int) -> JobPage:
        found: list[Job] = []
        at, last = read_cursor(cursor)
        ended = 0
        while not ended and len(found) < limit:
            replies, ended, at, last = self._connection.run("jobs", at, last, _CHUNK, limit - len(found), *filters)
            found.extend(wire.read_job(reply) for reply in replies)
        return JobPage(tuple(found), None if ended else f"{at}-{last}")

    def iter_open(self) -> Iterator[Job]:
        cursor: str | None = None
        while True:
            page = self._page(("open", "", "", "", ""), cursor, _CHUNK)
            yield from page.jobs
            cursor = page.cursor
            if cursor is None:
                return

    def counts(self) -> dict[str, dict[JobState, int]]:
        found: dict[str, dict[JobState, int]] = {}
        for field, number in wire.pairs(self._connection.run("counts")).items():
            function, _, state = field.rpartition(":")
            found.setdefault(function, {})[JobState(state)] = int(number)
        return found

    def backlog(self, limit: int = 200) -> list[Backlog]:
        return [
            Backlog(
                function=function,
                ready=ready,
                delayed=delayed,
                next_delayed_at=wire.seconds(later),
                jobs=tuple(wire.read_queued(function, reply) for reply in jobs),
            )
            for function, ready, delayed, later, jobs in self._connection.run("backlog", limit)
        ]

    def wait(self, job_id: str, timeout_s: float) -> Job | None:
        give_up = time.monotonic() + timeout_s
        position = self.last_position()
        while True:
            job = self.job(job_id)
            left_s = give_up - time.monotonic()
            if job is None or job.state.terminal or left_s <= 0:
                return job
            look_at = time.monotonic() + min(_LOOK_S, left_s)
            while (left_s := look_at - time.monotonic()) > 0:
                lines = self.transitions(position, left_s)
                if lines:
                    position = lines[-1].position
                if any(line.job_id == job_id and line.state.terminal for line in lines):
                    break

    def transitions(self, after: str, block_s: float = 0.0, limit: int = 500) -> list[Transition]:
        lines = self._connection.read_stream(self._connection.keys.one("transitions"), after, block_s, limit)
        return [wire.read_transition(position, fields) for position, fields in lines]

    def last_position(self) -> str:
        key = self._connection.keys.one("transitions")
        newest = self._connection.command("XREVRANGE", key, "+", "-", "COUNT", 1)
        return str(newest[0][0]) if newest else "0"
