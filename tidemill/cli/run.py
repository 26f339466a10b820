"""`tidemill run` and `tidemill submit`: files in, results or job ids out."""

from __future__ import annotations

import json
import secrets
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from tidemill.cli.connect import connect, duration, read_params
from tidemill.cli.faults import JOB_FAILED, NOT_REACHABLE, TIMED_OUT, Detached, complain, exit_code, say
from tidemill.cli.many import Many, progress
from tidemill.cli.saving import folder_for, save_all
from tidemill.cli.show import clean, json_option, on_terminal, print_json
from tidemill.client import Client, Job, Output
from tidemill.client.values import Snapshot
from tidemill.errors import ServiceUnavailable, TidemillError

_files = click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
_params = click.option("--param", "-p", "given", multiple=True, metavar="K=V", help="A parameter; JSON, or text.")
_key = click.option("--key", help="Idempotency key, for one file: the same key and file are the same job.")


@click.command(
    epilog="Examples:\n\n  tidemill run ocr scan.png\n\n  tidemill run ocr *.png --out results --timeout 5m\n\n"
    "  tidemill run caption cat.jpg --param top_k=3 --json"
)
@click.argument("function")
@_files
@_params
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for the results.")
@click.option("--timeout", type=duration, help="Stop waiting after this long; the jobs go on.")
@_key
@json_option
@click.pass_context
def run(
    ctx: click.Context,
    function: str,
    files: tuple[Path, ...],
    given: tuple[str, ...],
    out: Path | None,
    timeout: float | None,
    key: str | None,
    as_json: bool,
) -> None:
    """Submit FILES to FUNCTION, wait, and give the results.

    One file: its result is printed. Several: one line each. With --out all results are saved as files; those of several
    inputs in a folder per input. Ctrl-C stops the waiting, not the jobs.
    """
    client = connect()
    give_up = None if timeout is None else time.monotonic() + timeout
    jobs = _submit(client, function, files, given, key)
    worst, lines = 0, []
    with detaching(jobs), progress(len(jobs), "Waiting") as advance:
        for job, file in zip(jobs, files, strict=True):
            left_s = None if give_up is None else max(0.0, give_up - time.monotonic())
            line, code = _finish(job, file, out, left_s, alone=len(files) == 1)
            worst = _worse(worst, code)
            lines.append(line)
            advance(1)
    if as_json:
        print_json([{name: value for name, value in line.items() if name != "text"} for line in lines])
    else:
        _print(lines)
    ctx.exit(worst)


@click.command(
    epilog="Examples:\n\n  tidemill submit ocr scan.png\n\n  tidemill submit ocr *.png | xargs tidemill job wait"
)
@click.argument("function")
@_files
@_params
@_key
@json_option
def submit(function: str, files: tuple[Path, ...], given: tuple[str, ...], key: str | None, as_json: bool) -> None:
    """Submit FILES to FUNCTION and print a job id for each, without waiting."""
    jobs = _submit(connect(), function, files, given, key)
    if as_json:
        print_json(
            [{"file": str(file), "id": job.id, "state": job.state} for job, file in zip(jobs, files, strict=True)]
        )
        return
    for job in jobs:
        click.echo(job.id)


def _submit(client: Client, function: str, files: Sequence[Path], given: Sequence[str], key: str | None) -> list[Job]:
    if key is not None and len(files) > 1:
        raise click.UsageError("--key names one job: give one file with it.")
    params = read_params(given)
    # Known here, so that a call of which no answer came can be repeated.
    keys = [key or secrets.token_hex(16) for _ in files]
    calls = [client._jobs.submit(function, file, params, own) for file, own in zip(files, keys, strict=True)]
    many = Many(client, calls)
    jobs: list[Job] = []
    with detaching(jobs):
        try:
            many.run("Submitting", fatal=Exception)
        except KeyboardInterrupt:
            say("")  # below the ^C of the terminal
            raise
        finally:
            doubtful = _doubtful(many)
            jobs += [Job(client, snapshot) for snapshot in many.values.values()]
            if len(files) > 1 and len(jobs) < len(files) and (jobs or doubtful):
                say(f"{len(jobs)} of {len(files)} files were submitted, {many.left} were not sent.")
            _tell_doubt([_again(function, files[place], given, keys[place]) for place in doubtful])
    for error in many.errors.values():
        if jobs:
            say(f"The jobs of those that were: {' '.join(job.id for job in jobs)}")
        raise error
    return jobs


def _doubtful(many: Many[Snapshot]) -> list[int]:
    """The calls that may have been carried out, though no answer says so."""
    lost = [place for place, error in many.errors.items() if isinstance(error, ServiceUnavailable)]
    return many.unanswered + [place for place in lost if getattr(many.errors[place], "sent", True)]


def _again(function: str, file: Path, given: Sequence[str], key: str) -> str:
    params = [part for entry in given for part in ("--param", entry)]
    return shlex.join(["tidemill", "submit", "--key", key, *params, "--", function, str(file)])


def _tell_doubt(again: Sequence[str]) -> None:
    if again:
        say("Nobody said whether these were submitted. To repeat them is safe: each is one")
        say("job at most, and you get its id.")
        for command in again:
            say(f"  {clean(command)}")


def _finish(
    job: Job, file: Path, out: Path | None, timeout: float | None, *, alone: bool
) -> tuple[dict[str, Any], int]:
    line: dict[str, Any] = {"file": str(file), "id": job.id, "result": None, "outputs": [], "error": None, "text": ""}
    code = 0
    try:
        result = job.result(timeout)
        line["result"], line["text"] = _plain(result), _text(result)
        line["outputs"] = [{"name": o.name, "size": o.size, "bucket": o.bucket, "key": o.key} for o in job.outputs]
        if out is not None:
            paths = save_all(job.outputs, folder_for(job, file.name, out, alone=alone))
            for entry, path in zip(line["outputs"], paths, strict=True):
                entry["path"] = str(path)
            line["text"] = "\n".join(str(path) for path in paths)
    except TidemillError as error:
        code = exit_code(error)
        line["error"] = {"code": error.error_code, "message": error.message}
        complain(error)
    line["state"] = job.state
    line["cost_usd"] = job.data.get("cost", {}).get("usd")
    line["pool"] = job.data.get("pool")
    return line, code


def _plain(result: Any) -> Any:
    if isinstance(result, Output):
        return None
    if isinstance(result, dict):
        return {name: value for name, value in result.items() if not isinstance(value, Output)}
    return result


def _text(result: Any) -> str:
    if isinstance(result, Output):
        return f"{clean(result.name)} ({result.size} bytes; save it with --out DIR)"
    if isinstance(result, dict) and any(isinstance(value, Output) for value in result.values()):
        return "\n".join(_text(v) if isinstance(v, Output) else f"{clean(n)}: {_text(v)}" for n, v in result.items())
    if isinstance(result, str):
        return "\n".join(clean(line) for line in result.splitlines())
    return json.dumps(result, indent=2 if on_terminal() else None, ensure_ascii=not on_terminal())


def _print(lines: Sequence[dict[str, Any]]) -> None:
    if len(lines) == 1:
        if lines[0]["error"] is None:
            click.echo(lines[0]["text"])
        return
    for line in lines:
        text = line["text"] if line["error"] is None else line["error"]["message"]
        click.echo(f"{clean(line['file'])}\t{line['state']}\t{clean(text)}")


def _worse(one: int, other: int) -> int:
    """A failed job outweighs a wait that was too short; a service that is away outweighs both."""
    order = [0, TIMED_OUT, JOB_FAILED, NOT_REACHABLE]
    ranked = [code if code in order else NOT_REACHABLE for code in (one, other)]
    return one if order.index(ranked[0]) >= order.index(ranked[1]) else other


@contextmanager
def detaching(jobs: Sequence[Job]) -> Iterator[None]:
    """Turn Ctrl-C into a word on how to come back to these jobs."""
    try:
        yield
    except KeyboardInterrupt:
        if not jobs:
            raise
        raise Detached("tidemill job wait " + " ".join(job.id for job in jobs)) from None
