"""The words for an answer that is empty: a filter may name what there is not.

The service is asked first. It may be newer and know more codes, and jobs stay when their function is deleted, so only
an empty answer is a reason to look at the names.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from itertools import chain

import click

from tidemill.cli.faults import say
from tidemill.client import Client, Job
from tidemill.errors import JOB_HINTS, NotFound

_CODES = "See docs/reference/errors.md, or the last column of `tidemill job list --state failed`."


def found_jobs(
    client: Client,
    *,
    state: str | None,
    function: str | None,
    reason: str | None,
    since: float | None = None,
    limit: int | None = None,
) -> Iterator[Job]:
    """Give the jobs that pass the filters, and say why when there are none.

    Raises:
        click.BadParameter: there are none, and `reason` is no error code.
    """
    jobs = client.jobs(state=state, function=function, reason=reason, since=since, limit=limit)
    first = next(jobs, None)
    if first is not None:
        return chain((first,), jobs)
    if reason is not None and reason not in JOB_HINTS:
        near = difflib.get_close_matches(reason, JOB_HINTS, 3)
        remedy = f"Did you mean {' or '.join(near)}?" if near else _CODES
        raise click.BadParameter(f"no job ended so, and {reason!r} is no error code. {remedy}", param_hint="--reason")
    if function is not None:
        try:
            client.function(function)
        except NotFound as error:
            say(f"No job was found, and {error.message}. {error.hint}")
    return iter(())
