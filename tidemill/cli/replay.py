"""`tidemill replay`: objects that were there before their trigger, and jobs that failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from tidemill.cli.connect import connect
from tidemill.cli.faults import say
from tidemill.cli.show import clean, json_option, pairs, print_json

_SHOWN = 10


@click.command(
    epilog="Examples:\n\n  tidemill replay ocr --prefix ocr/2025- --dry-run\n\n  tidemill replay ocr --failed-only"
)
@click.argument("function")
@click.option("--prefix", default="", help="Only objects whose key begins so (without the bucket).")
@click.option("--failed-only", is_flag=True, help="Only jobs that failed: each gets its next generation.")
@click.option("--dry-run", is_flag=True, help="Say what would be started, and start nothing.")
@json_option
def replay(function: str, prefix: str, failed_only: bool, dry_run: bool, as_json: bool) -> None:
    """Start jobs for objects that were there before the function's trigger.

    Objects that have a job already, whatever its end, are no second one; --failed-only runs those again that failed.
    """
    found = connect().replay(function, prefix=prefix, failed_only=failed_only, dry_run=dry_run)
    if as_json:
        print_json(found)
        return
    what = "failed jobs" if failed_only else "objects"
    pairs(
        {
            f"{what} found": found["found"],
            "jobs that would start" if dry_run else "jobs started": found["started"],
            "had a job already": None if failed_only else found["known"],
            "ignored": _reasons(found["ignored"]),
            "refused": _reasons(found["refused"]),
        }
    )
    if dry_run:
        for example in found["examples"][:_SHOWN]:
            click.echo(f"  {clean(example)}")
        if found["started"] > _SHOWN:
            click.echo("  ...")
    if not found["complete"]:
        said = "there are more; these were counted in half a minute" if dry_run else "the service goes on by itself"
        say(f"Not all was looked at yet: {said}.")
    if not dry_run and found["started"]:
        say(f"Watch them with: tidemill job list --function {function}")


def _reasons(counts: Mapping[str, Any]) -> str | None:
    return ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items())) or None
