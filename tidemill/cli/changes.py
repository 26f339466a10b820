"""Cancelling and retrying many jobs at once, and what is said of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tidemill.cli.faults import complain, exit_code, say
from tidemill.cli.many import Many
from tidemill.client import Client
from tidemill.client.jobs import JobCalls
from tidemill.client.values import Snapshot
from tidemill.client.wire import Call
from tidemill.errors import Conflict, ServiceUnavailable, TidemillError


@dataclass(frozen=True)
class Changed:
    """The jobs as they are now, the exit code, and lines for the user to read below them."""

    jobs: list[Snapshot]
    code: int
    notes: list[str]


def cancel(client: Client, ids: Sequence[str]) -> Changed:
    """Cancel jobs."""
    many = Many(client, [_cancelling(client._jobs, job_id) for job_id in ids])
    _run(many, ids, "Cancelling")
    code = _complain(many, ids)
    found = list(many.values.values())
    return Changed([job for job, _ in found], code, _cancel_notes(found))


def retry(client: Client, ids: Sequence[str], *, every: bool) -> Changed:
    """Start the next generation of jobs. With `every` one that somebody else retried a moment ago is no error."""
    many = Many(client, [client._jobs.retry(job_id) for job_id in ids])
    _run(many, ids, "Retrying")
    taken = [place for place, error in many.errors.items() if every and _not_over(error)]
    for place in taken:
        del many.answers[place]
    code = _complain(many, ids)
    note = f"Left alone, as somebody else has retried them since: {_jobs(len(taken))}."
    return Changed(list(many.values.values()), code, [note] if taken else [])


def _cancelling(calls: JobCalls, job_id: str) -> Call[tuple[Snapshot, bool]]:
    """Give the job, and whether it was over before."""
    before = yield from calls.look(job_id)
    if before.done:
        return before, True
    after = yield from calls.cancel(job_id)
    return after, after.done and after.state != "cancelled"


def _cancel_notes(found: Sequence[tuple[Snapshot, bool]]) -> list[str]:
    notes = []
    ends = Counter(job.state for job, over in found if over)
    if ends:
        states = ", ".join(f"{count} {state}" for state, count in sorted(ends.items()))
        notes.append(f"Over before, and left as {'it is' if ends.total() == 1 else 'they are'}: {states}.")
    going_on = [job for job, _ in found if not job.done]
    closing = [job for job in going_on if job.state == "committed"]
    if closing:
        notes.append(f"Too late to cancel, as the end is being written already: {_jobs(len(closing))}.")
    if len(going_on) > len(closing):
        notes.append(f"Still running, with processes that end within 2 s: {_jobs(len(going_on) - len(closing))}.")
    if going_on:
        job_id = going_on[0].id if len(going_on) == 1 else "ID"
        notes.append(f"See the end with: tidemill job show {job_id}")
    return notes


def _not_over(error: Exception) -> bool:
    return isinstance(error, TidemillError) and error.error_code == Conflict.code


def _run(many: Many[Any], ids: Sequence[str], what: str) -> None:
    try:
        many.run(what, fatal=ServiceUnavailable)
    except KeyboardInterrupt:
        if len(ids) > 1:
            _say_how_far(many, ids, many.unanswered)
        raise


def _complain(many: Many[Any], ids: Sequence[str]) -> int:
    """Say what went wrong with which job, of a service that is away once; give the exit code."""
    code, away = 0, {}
    for place, error in many.errors.items():
        if not isinstance(error, TidemillError):
            raise error
        code = max(code, exit_code(error))
        if isinstance(error, ServiceUnavailable):
            away[place] = error
        else:
            say(f"Job {ids[place]}:")
            complain(error)
    if away:
        complain(next(iter(away.values())))
        if len(ids) > 1:
            _say_how_far(many, ids, list(away))
    return code


def _say_how_far(many: Many[Any], ids: Sequence[str], doubtful: Sequence[int]) -> None:
    say(f"\n{len(many.values)} of {_jobs(len(ids))} were changed, {many.left} were not tried.")
    if doubtful:
        say("Nobody said whether these were; `tidemill job show ID` shows it:")
        for place in doubtful:
            say(f"  {ids[place]}")


def _jobs(count: int) -> str:
    return f"{count} job{'' if count == 1 else 's'}"
