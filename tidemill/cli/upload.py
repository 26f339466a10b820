"""`tidemill upload` and `tidemill watch`: files into buckets, through presigned addresses."""

from __future__ import annotations

import mimetypes
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from tidemill.cli.connect import connect
from tidemill.cli.faults import complain, exit_code, say
from tidemill.cli.show import clean, json_option, print_json
from tidemill.client import Client
from tidemill.client.wire import Call, Together
from tidemill.errors import InvalidSpec, TidemillError

_AT_ONCE = 8


@click.command(
    epilog="Examples:\n\n  tidemill upload *.png inbox/ocr/\n\n  tidemill upload cat.jpg inbox\n\n"
    "The last part of each file's path is added to the prefix as it is, whatever characters it has."
)
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("target", metavar="BUCKET/PREFIX")
@json_option
@click.pass_context
def upload(ctx: click.Context, files: tuple[Path, ...], target: str, as_json: bool) -> None:
    """Put FILES into BUCKET below PREFIX. A trigger there starts a job for each."""
    pairs = [(file, *_object(file, target)) for file in files]
    _check_unique([(file, key) for file, _, key in pairs])
    client = connect()
    done: list[dict[str, Any]] = []
    code = 0
    with _bar(sum(file.stat().st_size for file in files)) as on_sent:
        for start in range(0, len(pairs), _AT_ONCE):
            batch = pairs[start : start + _AT_ONCE]
            for (file, bucket, key), answer in zip(batch, client._run(_together(client, batch, on_sent)), strict=True):
                if isinstance(answer, Exception):
                    code = max(code, _failed(file, answer))
                    continue
                done.append({"file": str(file), "bucket": bucket, "key": key, "size": file.stat().st_size})
    if as_json:
        print_json(done)
    else:
        for entry in done:
            click.echo(clean(f"{entry['bucket']}/{entry['key']}"))
    if code:
        say(f"{len(done)} of {len(files)} files are there.")
    ctx.exit(code)


@click.command(epilog="Example:\n\n  tidemill watch ~/scans inbox/ocr/")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("target", metavar="BUCKET/PREFIX")
@click.option("--existing", is_flag=True, help="Also put there what the folder holds already.")
@click.option(
    "--interval", default=1.0, show_default=True, type=click.FloatRange(min=0.1), help="Seconds between looks."
)
@json_option
def watch(folder: Path, target: str, existing: bool, interval: float, as_json: bool) -> None:
    """Put each new or changed file of FOLDER into BUCKET below PREFIX, until Ctrl-C.

    A file is taken once its size and time have stayed the same between two looks. Names that begin with a dot or end
    in ~ or .part are left out, as are folders.
    """
    client = connect()
    seen: dict[Path, tuple[int, int]] = {} if existing else dict(_look(folder))
    before: dict[Path, tuple[int, int]] = {}
    say(f"Watching {folder}; Ctrl-C ends it.")
    try:
        while True:
            now = dict(_look(folder))
            for file, mark in now.items():
                if seen.get(file) == mark or before.get(file) != mark:
                    continue
                seen[file] = mark
                _put(client, file, target, as_json)
            before = now
            time.sleep(interval)
    except KeyboardInterrupt:
        say("Stopped watching.")


def _put(client: Client, file: Path, target: str, as_json: bool) -> None:
    try:
        bucket, key = _object(file, target)
        size = file.stat().st_size
        client.upload(file, bucket, key)
    except (TidemillError, OSError) as error:
        _failed(file, error)
        return
    if as_json:
        print_json({"file": str(file), "bucket": bucket, "key": key, "size": size})
    else:
        click.echo(clean(f"{bucket}/{key}"))


def _look(folder: Path) -> Iterator[tuple[Path, tuple[int, int]]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") or entry.name.endswith(("~", ".part")) or not entry.is_file():
                continue
            status = entry.stat()
            yield Path(entry.path), (status.st_size, status.st_mtime_ns)


def _object(file: Path, target: str) -> tuple[str, str]:
    bucket, _, prefix = target.partition("/")
    if not bucket:
        raise click.BadParameter(
            f"{target!r} names no bucket; write inbox or inbox/prefix/", param_hint="BUCKET/PREFIX"
        )
    try:
        file.name.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidSpec(
            f"The name of {file} is not UTF-8, and a key must be.", hint="Rename the file, or submit it to a function."
        ) from error
    if prefix and not prefix.endswith("/"):
        prefix += "/"
    return bucket, prefix + file.name


def _check_unique(pairs: Sequence[tuple[Path, str]]) -> None:
    first: dict[str, Path] = {}
    for file, key in pairs:
        if key in first:
            raise click.UsageError(f"{first[key]} and {file} would have the same key {key}: upload them apart.")
        first[key] = file


def _together(
    client: Client, batch: Sequence[tuple[Path, str, str]], on_sent: Callable[[int], None] | None
) -> Call[list[Exception | None]]:
    calls = [client._catalogue.upload(file, bucket, key, _type(file), on_sent) for file, bucket, key in batch]
    answers = yield Together(tuple(calls))
    return list(answers)


def _type(file: Path) -> str | None:
    return mimetypes.guess_type(file.name)[0]


def _failed(file: Path, error: Exception) -> int:
    say(f"{file} was not uploaded.")
    if isinstance(error, TidemillError):
        complain(error)
        return exit_code(error)
    say(f"Error: {error}")
    return 2


@contextmanager
def _bar(total_bytes: int) -> Iterator[Callable[[int], None] | None]:
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("upload", total=total_bytes)
        yield lambda count: bar.advance(task, count)
