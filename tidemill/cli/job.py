"""`tidemill job`: list, show, wait, logs, cancel, retry, results, ignored."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import click

from tidemill.cli import changes
from tidemill.cli.connect import connect, duration
from tidemill.cli.connect import job_id as job_id_of
from tidemill.cli.connect import moment as moment_of
from tidemill.cli.faults import Detached, complain, exit_code, say
from tidemill.cli.filters import found_jobs
from tidemill.cli.many import progress
from tidemill.cli.run import detaching
from tidemill.cli.saving import save_all
from tidemill.cli.show import clean, dollars, json_option, moment, on_terminal, pairs, place, print_json, seconds, table
from tidemill.client import Job
from tidemill.client.values import FINAL_STATES, Snapshot
from tidemill.errors import TidemillError

_STATES = ("queued", "released", "running", "committed", "succeeded", "failed", "cancelled")
_ON_SCREEN = 50


@click.group(epilog="Example: tidemill job list --state failed --since 1h")
def job() -> None:
    """Jobs: one input for one function each."""


@job.command(
    "list", epilog="Examples:\n\n  tidemill job list --state running\n\n  tidemill job list --json | jq length"
)
@click.option("--state", type=click.Choice(_STATES), help="Only jobs in this state.")
@click.option("--function", help="Only jobs of this function.")
@click.option("--since", type=moment_of, help="Only jobs accepted after this: 10m (ago), or a date and time.")
@click.option("--reason", metavar="CODE", help="Only jobs that ended with this error code.")
@click.option("--limit", type=click.IntRange(min=1), help=f"At most so many. On a terminal {_ON_SCREEN}, else all.")
@json_option
def list_(
    state: str | None, function: str | None, since: float | None, reason: str | None, limit: int | None, as_json: bool
) -> None:
    """List jobs, newest first. With --json one array of all jobs, each as the API describes it."""
    short = limit is None and on_terminal() and not as_json
    most = _ON_SCREEN + 1 if short else limit
    found = found_jobs(connect(), state=state, function=function, since=since, reason=reason, limit=most)
    if as_json:
        print_json([dict(entry.data) for entry in found])
        return
    rows = (_row(entry.data) for entry in found)
    columns = ("id", "function", "state", "input", "pool", "time", "cost", "reason")
    if not short:
        table(columns, rows, empty="No jobs.")
        return
    seen = list(rows)
    table(columns, islice(seen, _ON_SCREEN), empty="No jobs.")
    if len(seen) > _ON_SCREEN:
        say(f"These are the newest {_ON_SCREEN}; --limit N shows more.")


@job.command("show", epilog="Example: tidemill job show 4f0c... --json")
@click.argument("job_id", type=job_id_of)
@json_option
def show(job_id: str, as_json: bool) -> None:
    """Show a job: its state, why it ran where it ran, what it cost, its results and its history."""
    found = connect().job(job_id)
    if as_json:
        print_json(dict(found.data))
    else:
        _describe(found)


@job.command("wait", epilog="Example: tidemill job wait 4f0c... --timeout 5m")
@click.argument("job_ids", nargs=-1, required=True, type=job_id_of)
@click.option("--timeout", type=duration, help="Stop waiting after this long; the jobs go on.")
@json_option
@click.pass_context
def wait(ctx: click.Context, job_ids: tuple[str, ...], timeout: float | None, as_json: bool) -> None:
    """Wait until jobs are over. Ends with 1 when one has failed, with 3 when the time is over."""
    client = connect()
    give_up = None if timeout is None else time.monotonic() + timeout
    jobs = [client.job(job_id) for job_id in job_ids]
    code = 0
    with detaching(jobs), progress(len(jobs), "Waiting") as advance:
        for entry in jobs:
            code = max(code, _wait(entry, None if give_up is None else max(0.0, give_up - time.monotonic())))
            advance(1)
    _print_all(jobs, as_json)
    ctx.exit(code)


@job.command("logs", epilog="Example: tidemill job logs -f 4f0c...")
@click.argument("job_id", type=job_id_of)
@click.option("--follow", "-f", is_flag=True, help="Go on until the job is over.")
@json_option
def logs(job_id: str, follow: bool, as_json: bool) -> None:
    """Print what the function printed and logged.

    Once the job is over, this is the log of its last attempt. Of earlier ones `tidemill job show ID` has the error, in
    its history.
    """
    found = connect().job(job_id)
    if not follow:
        text = found.logs()
        if as_json:
            print_json({"id": found.id, "state": found.state, "log": text})
        else:
            click.echo(_lines(text), nl=False)
        return
    try:
        for line in found.follow():
            if as_json:
                print_json({"at": line.at, "stream": line.stream, "text": line.text})
            else:
                click.echo(clean(line.text.rstrip("\n")))
            sys.stdout.flush()
    except KeyboardInterrupt:
        raise Detached(f"tidemill job logs -f {found.id}") from None


@job.command("cancel", epilog="Example: tidemill job cancel 4f0c...")
@click.argument("job_ids", nargs=-1, required=True, type=job_id_of)
@json_option
@click.pass_context
def cancel(ctx: click.Context, job_ids: tuple[str, ...], as_json: bool) -> None:
    """Cancel jobs: queued ones end at once, running ones within 2 s, those that are over stay as they are."""
    _tell(ctx, changes.cancel(connect(), job_ids), as_json)


@job.command(
    "retry",
    epilog="Examples:\n\n  tidemill job retry 4f0c...\n\n  tidemill job retry --all --reason timeout --function ocr",
)
@click.argument("job_ids", nargs=-1, type=job_id_of)
@click.option("--all", "every", is_flag=True, help="Every job that has failed.")
@click.option("--reason", metavar="CODE", help="With --all: only those that failed with this error code.")
@click.option("--function", help="With --all: only those of this function.")
@json_option
@click.pass_context
def retry(
    ctx: click.Context,
    job_ids: tuple[str, ...],
    every: bool,
    reason: str | None,
    function: str | None,
    as_json: bool,
) -> None:
    """Run jobs that are over once more, as their next generation.

    With --all a job that somebody else has retried meanwhile is left alone, so two such commands do no harm.
    """
    if every == bool(job_ids):
        raise click.UsageError("Give job ids, or --all.")
    if not every and (reason or function):
        raise click.UsageError("--reason and --function go with --all.")
    client = connect()
    ids = job_ids or tuple(found.id for found in found_jobs(client, state="failed", reason=reason, function=function))
    if not ids and not as_json:
        say("No failed job fits, so none is retried.")
        return
    _tell(ctx, changes.retry(client, ids, every=every), as_json)


@job.command("results", epilog="Example: tidemill job results 4f0c... --out results")
@click.argument("job_id", type=job_id_of)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder to save them in.")
@json_option
def results(job_id: str, out: Path | None, as_json: bool) -> None:
    """List the results of a job, or save them with --out. Names are made safe, nothing is overwritten."""
    found = connect().job(job_id)
    if found.state not in FINAL_STATES:
        say(f"Job {found.id} is {found.state}: its results come when it has succeeded.")
    outputs = found.outputs
    entries: list[dict[str, Any]] = [
        {"name": o.name, "size": o.size, "bucket": o.bucket, "key": o.key, "content_type": o.content_type}
        for o in outputs
    ]
    if out is not None:
        for entry, path in zip(entries, save_all(outputs, out), strict=True):
            entry["path"] = str(path)
    if as_json:
        print_json(entries)
    elif out is not None:
        for entry in entries:
            click.echo(clean(entry["path"]))
    else:
        table(("name", "bytes", "object"), [(e["name"], e["size"], f"{e['bucket']}/{e['key']}") for e in entries])


@job.command("ignored", epilog="Example: tidemill job ignored --json")
@click.option("--limit", type=click.IntRange(1, 10_000), default=1000, show_default=True, help="At most so many.")
@json_option
def ignored(limit: int, as_json: bool) -> None:
    """List objects under a trigger that became no job, with the reason: hidden and temporary names, empty objects."""
    found = connect().ignored(limit)
    if as_json:
        print_json(found)
        return
    rows = [(moment(entry["at"]), f"{entry['bucket']}/{entry['key']}", entry["reason"]) for entry in found]
    table(("seen", "object", "reason"), rows, empty="Nothing was ignored.")


def _row(data: Any) -> tuple[Any, ...]:
    reason = (data.get("error") or {}).get("code")
    usd = (data.get("cost") or {}).get("usd")
    place_of = place(data)
    return data["id"], data["function"], data["state"], place_of, data.get("pool"), seconds(data), dollars(usd), reason


def _wait(entry: Job, timeout: float | None) -> int:
    try:
        error = entry.wait(timeout).error
    except TidemillError as failure:
        error = failure
    if error is None:
        return 0
    complain(error)
    return exit_code(error)


def _tell(ctx: click.Context, changed: changes.Changed, as_json: bool) -> None:
    _print_all(changed.jobs, as_json)
    for note in changed.notes:
        say(note)
    ctx.exit(changed.code)


def _print_all(jobs: Sequence[Job | Snapshot], as_json: bool) -> None:
    if as_json:
        print_json([dict(entry.data) for entry in jobs])
        return
    table(
        ("id", "function", "state", "generation"), [(j.id, j.function, j.state, j.data.get("generation")) for j in jobs]
    )


def _describe(found: Job) -> None:
    data, ended = found.data, found.error
    where, cost, error = data.get("placement") or {}, data.get("cost") or {}, data.get("error") or {}
    pairs(
        {
            "id": data["id"],
            "function": f"{data['function']} (revision {data.get('revision')})",
            "state": data["state"],
            "generation": data.get("generation"),
            "attempt": data.get("attempt"),
            "input": place(data),
            "params": data.get("params"),
            "pool": data.get("pool"),
            "agent": data.get("agent"),
            "why": where.get("reason"),
            "cost": dollars(cost.get("usd")),
            "gpu seconds": cost.get("gpu_seconds") or None,
            "accepted": moment(data.get("created_at")),
            "finished": moment(data.get("finished_at")),
            "time": seconds(data),
            "error": f"{error.get('code')}: {error.get('message')}" if error else None,
            "next": ended.hint if ended is not None else error.get("hint"),
        }
    )
    if error.get("traceback"):
        click.echo("\n" + _lines(error["traceback"]), nl=False)
    _section("Results", ("name", "bytes", "object"), [_output_row(o) for o in data.get("outputs") or ()])
    judged = [
        (c["pool"], c.get("seconds_p50"), c.get("usd"), c.get("score"), c.get("excluded_because"))
        for c in where.get("candidates") or ()
    ]
    _section("Pools", ("pool", "seconds", "usd", "score", "excluded because"), judged)
    history = [(moment(e["at"]), e["what"], e.get("agent"), e.get("detail")) for e in data.get("history") or ()]
    _section("History", ("when", "what", "agent", "detail"), history)


def _output_row(output: Any) -> tuple[Any, ...]:
    key = output["key"]
    return output.get("name") or key.rsplit("/", 1)[-1], output.get("size"), f"{output['bucket']}/{key}"


def _section(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    if rows:
        click.echo(f"\n{title}")
        table(columns, rows)


def _lines(text: str) -> str:
    return "".join(clean(line) + "\n" for line in text.splitlines())
