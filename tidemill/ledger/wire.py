"""How jobs and the rest look inside Redis, and how they become the values of `api.py` again.

The hash of a job holds short strings: `state function generation spec created submitted accepted max owner look looks
attempt counted epoch nonce agent pool last_agent released started done by cancel progress placement granted end error`.
Absent means the default. `spec` is JSON of what never changes (input, params, revision), `end` JSON of the commit's
facts, times are whole microseconds, `accepted`, `counted` and `epoch` are the epochs of submit, of the attempt counter
and of the token.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel

from tidemill.ledger.api import AgentReport, Claim, Ended, NewJob, QueuedJob, RunnerReport, Token, Transition
from tidemill.models import Cost, Event, Job, JobError, JobInput, JobState, Manifest

_SUMMARY = 120
_ERROR_LINE = 200
_LONGEST = {"traceback": 16_000, "log_tail": 8_000}


def dumps(value: Any) -> str:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def plain(model: BaseModel) -> dict[str, Any]:
    """A model as JSON values, without what has its default."""
    return model.model_dump(mode="json", exclude_defaults=True)


def micros(seconds: float) -> int:
    return round(seconds * 1_000_000)


def seconds(micros: str | None) -> float | None:
    return int(micros) / 1_000_000 if micros else None


def spec_of(job: NewJob | Manifest) -> str:
    """What never changes of a job, as JSON."""
    spec: dict[str, Any] = {"input": plain(job.input), "revision": job.revision}
    if job.params:
        spec["params"] = dict(job.params)
    return dumps(spec)


def summary_of(source: JobInput) -> str:
    """`bucket/key`, at most 120 characters; the end of a key says more than its start."""
    whole = f"{source.bucket}/{source.key}"
    if len(whole) <= _SUMMARY:
        return whole
    head = f"{source.bucket}/…"
    return head + whole[len(head) - _SUMMARY :]


def error_line(error: JobError | None) -> str:
    """One short line: code and message."""
    if error is None:
        return ""
    line = f"{error.code}: {error.message}" if error.message else error.code
    line = " ".join(line.split())
    return line if len(line) <= _ERROR_LINE else line[: _ERROR_LINE - 1] + "…"


def bounded(error: JobError) -> JobError:
    """The error with the ends of its long texts; the manifest has them whole."""
    cut = {name: "…" + text[-limit:] for name, limit in _LONGEST.items() if len(text := getattr(error, name)) > limit}
    return error.model_copy(update=cut)


def end_of(ended: Ended) -> str:
    """The facts of a commit as JSON."""
    facts: dict[str, Any] = {"state": ended.state, "usd": ended.usd, "gpu_seconds": ended.gpu_seconds}
    facts["run_s"] = ended.run_s
    if ended.error is not None:
        facts["error"] = plain(bounded(ended.error))
    if ended.outputs:
        facts["outputs"] = [plain(output) for output in ended.outputs]
    if ended.revision:
        facts["revision"] = ended.revision
    return dumps(facts)


def token_args(token: Token) -> tuple[str, int, int, int, str]:
    """A token as the five arguments that the scripts take."""
    return token.job_id, token.generation, token.epoch, token.attempt, token.nonce


def owner_arg(owner: str) -> str:
    """An owner as the scripts take it; empty for the default one."""
    return "" if owner == "default" else owner


def fence_arg(fence: int | None) -> int | str:
    """The fence of a leader's lease as the scripts take it; empty for calls that no leader makes."""
    return "" if fence is None else fence


def pairs(flat: Sequence[str]) -> dict[str, str]:
    """A flat list of names and values as a dictionary."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _event(line: str) -> dict[str, Any]:
    at, what, attempt, agent, detail = json.loads(line)
    event = {"at": int(at) / 1_000_000, "what": what, "attempt": int(attempt)}
    return event | {"agent": agent or None, "detail": detail or None}


def entry_of(event: Event) -> str:
    """An event as an entry of a job's history."""
    return dumps([str(micros(event.at)), event.what, str(event.attempt), event.agent or "", event.detail or ""])


def job_of(job_id: str, fields: Mapping[str, str], history: Sequence[str]) -> Job:
    """The job of a hash and its history. Outputs and error show only when the job is terminal."""
    spec = json.loads(fields["spec"])
    end = json.loads(fields["end"]) if "end" in fields else {}
    state = JobState(fields["state"])
    values: dict[str, Any] = {
        "id": job_id,
        "function": fields["function"],
        "revision": end.get("revision") or spec["revision"],
        "generation": int(fields["generation"]),
        "state": state,
        "input": spec["input"],
        "params": spec.get("params", {}),
        "owner": fields.get("owner", "default"),
        "attempt": int(fields.get("attempt", 0)),
        "pool": fields.get("pool"),
        "agent": fields.get("agent"),
        "created_at": seconds(fields["created"]),
        "released_at": seconds(fields.get("released")),
        "started_at": seconds(fields.get("started")),
        "finished_at": seconds(fields.get("done")),
        "progress": json.loads(fields["progress"]) if "progress" in fields else None,
        "placement": json.loads(fields["placement"]) if fields.get("placement") else None,
        "history": [_event(line) for line in history],
        "cancel_requested": "cancel" in fields,
    }
    if end:
        values["cost"] = Cost(usd=end["usd"], gpu_seconds=end["gpu_seconds"])
    if state.terminal:
        values["outputs"] = end.get("outputs", ())
        values["error"] = end.get("error")
    return Job.model_validate(values)


def read_job(reply: Sequence[Any]) -> Job:
    """The job of a script's reply {id, look first, fields, history}."""
    job_id, _, flat, history = reply
    return job_of(job_id, pairs(flat), history)


def read_claim(reply: Sequence[Any]) -> Claim:
    """The claim of a script's reply {id, look first, fields, history, and for an agent the version}."""
    job_id, look, flat, history, *version = reply
    fields = pairs(flat)
    token = Token(
        job_id=job_id,
        generation=int(fields["generation"]),
        epoch=int(fields["epoch"]),
        attempt=int(fields.get("attempt", 0)),
        nonce=fields["nonce"],
    )
    job = job_of(job_id, fields, history)
    return Claim(
        token, job, int(fields["max"]), bool(look), "cancel" in fields, version=int(version[0]) if version else None
    )


def read_queued(function: str, reply: Sequence[str]) -> QueuedJob:
    """A waiting job of the backlog's reply {id, spec, owner, submitted, attempt, last agent}."""
    job_id, text, owner, submitted, attempt, last_agent = reply
    spec = json.loads(text)
    return QueuedJob(
        id=job_id,
        function=function,
        owner=owner,
        created_at=int(submitted) / 1_000_000,
        size=spec["input"]["size"],
        params=spec.get("params", {}),
        attempt=int(attempt),
        last_agent=last_agent or None,
    )


def read_transition(position: str, fields: Mapping[str, str]) -> Transition:
    """One entry of the stream of transitions."""
    return Transition(
        position=position,
        job_id=fields["job"],
        function=fields["function"],
        state=JobState(fields["state"]),
        at=int(fields["at"]) / 1_000_000,
        attempt=int(fields["attempt"]),
        generation=int(fields["generation"]),
        agent=fields["agent"] or None,
        summary=fields.get("summary", ""),
        error=fields.get("error", ""),
        created=fields.get("created") == "1",
        run_s=float(fields.get("run_s") or 0.0),
    )


def report_text(report: AgentReport) -> str:
    """What an agent says of itself, as JSON."""
    values = asdict(report)
    for name in ("seen_at", "released", "running"):
        del values[name]
    return dumps(values)


def read_report(text: str, seen: str, released: int, running: int) -> AgentReport:
    """What an agent said of itself, and what the ledger knows of it."""
    values = json.loads(text)
    values["runners"] = tuple(RunnerReport(**runner) for runner in values["runners"])
    return AgentReport(**values, seen_at=int(seen) / 1_000_000, released=released, running=running)
