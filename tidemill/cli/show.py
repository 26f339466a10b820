"""What commands print: JSON for programs, tables for a terminal, tab-separated lines for a pipe.

Names of objects come from anywhere. What reaches a terminal or a line of text has its control characters escaped, so
that a key can neither move the cursor nor pretend to be two lines; JSON carries every name unchanged.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
import time
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

_COLOURS = {
    "succeeded": "green",
    "failed": "red",
    "cancelled": "yellow",
    "running": "cyan",
    "ok": "green",
    "warning": "yellow",
}


def json_option(command: F) -> F:
    """The option `--json`, given to the command as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON with stable fields.")(command)


def on_terminal() -> bool:
    """Whether a person reads along."""
    return sys.stdout.isatty()


_SPARE = ("cost", "time", "pool")  # what a narrow terminal can do without: `job show` has it


def print_json(value: Any) -> None:
    """Print a value; names that are no proper text survive as escapes."""
    click.echo(json.dumps(value, indent=2 if on_terminal() else None))


def clean(text: str) -> str:
    """Give a text without characters that a terminal would act on."""
    return "".join(c if unicodedata.category(c) not in {"Cc", "Cf", "Cs", "Zl", "Zp"} else _escape(c) for c in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str = "Nothing here.") -> None:
    """Print rows: a table on a terminal, lines of tab-separated values without a head in a pipe."""
    texts = ([clean("" if value is None else str(value)) for value in row] for row in rows)
    if not on_terminal():
        for row in texts:
            click.echo("\t".join(row))
        return
    found = list(texts)
    if not found:
        click.echo(empty)
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    widths = {index: max(len(name), *(len(row[index]) for row in found)) for index, name in enumerate(columns)}
    shown = [index for index in widths if any(row[index] for row in found)]
    for name in _SPARE:
        if sum(widths[index] + 2 for index in shown) > console.width:
            shown = [index for index in shown if columns[index] != name]
    for index in shown:
        # An id is there to be copied into the next command: on a narrow terminal the others make room for it, in more
        # lines, but whole.
        whole = max(len(row[index]) for row in found) if columns[index] == "id" else None
        drawn.add_column(columns[index], no_wrap=columns[index] == "id", min_width=whole, overflow="fold")
    for row in found:
        drawn.add_row(*(Text(row[index], style=_COLOURS.get(row[index], "")) for index in shown))
    console.print(drawn)


def pairs(values: Mapping[str, Any]) -> None:
    """Print names and values, one line each, on a terminal in as many as it takes; empty ones are left out."""
    shown = {name: clean(str(value)) for name, value in values.items() if value not in (None, "", [], {})}
    width = max((len(name) for name in shown), default=0)
    for name, value in shown.items():
        click.echo(_wrapped(f"{name:<{width}}  ", value) if on_terminal() else f"{name}\t{value}")


def _wrapped(head: str, text: str) -> str:
    """Lines as wide as the terminal. Words stay whole, and so do commands in backticks, for they are to be copied."""
    whole = re.sub(r"`[^`]*`", lambda command: command[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(
        whole,
        shutil.get_terminal_size().columns,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines or [head]).replace("\0", " ")


def moment(at: float | None) -> str:
    """Give a time as local text."""
    return "" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def seconds(job: Mapping[str, Any], now: float | None = None) -> str:
    """Give how long a job has been known, up to its end."""
    created, finished = job.get("created_at"), job.get("finished_at")
    if created is None:
        return ""
    return f"{(finished or (time.time() if now is None else now)) - created:.1f} s"


def dollars(value: float | None) -> str:
    """Give US dollars; small amounts keep their digits, down to a millionth."""
    if value is None:
        return ""
    if 0 < value < 1e-6:
        return "<$0.000001"
    return f"${value:.6f}".rstrip("0").rstrip(".")


def place(job: Mapping[str, Any]) -> str:
    """Give the input of a job as bucket/key."""
    source = job.get("input") or {}
    return str(source.get("name") or f"{source.get('bucket', '')}/{source.get('key', '')}")
