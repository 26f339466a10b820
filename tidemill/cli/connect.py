"""The client of a command, and the words that all commands read alike: parameters, times, durations."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import click

from tidemill.client import Client
from tidemill.client.profile import DEFAULT_URL, resolve
from tidemill.models.base import parse_duration

# A person waits: long enough for a restart of the service, short enough to hear that there is none.
_RETRY_S = 8.0
# Nothing says that there is a service: neither profile, nor environment.
_GUESS_RETRY_S = 1.0
_JOB_ID = re.compile(r"[0-9a-f]{32}")


def connect() -> Client:
    """Give a client for the service that environment and profile name; it is closed with the command."""
    # httpx loads a command line of its own when it can, and that costs twice what the rest of it does.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    client = Client(retry_s=_GUESS_RETRY_S if resolve().url == DEFAULT_URL else _RETRY_S)
    click.get_current_context().call_on_close(client.close)
    return client


def read_params(given: Sequence[str]) -> dict[str, Any]:
    """Give the parameters of `--param k=v`. A value that is JSON is taken as such, all else is text.

    Raises:
        click.BadParameter: there is no equals sign.
    """
    params: dict[str, Any] = {}
    for entry in given:
        name, equals, text = entry.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{entry!r} is not name=value", param_hint="--param")
        try:
            params[name] = json.loads(text)
        except ValueError:
            params[name] = text
    return params


def job_id(text: str) -> str:
    """Give the id of a job, which is a text of a certain shape; what is none is refused before anything is asked."""
    if not _JOB_ID.fullmatch(text):
        raise click.BadParameter(
            f"{text[:80]!r} is no job id: each has 32 digits of 0-9 and a-f. `tidemill job list` shows them."
        )
    return text


def duration(text: str) -> float:
    """Give seconds of a number with a unit such as 90s, 2m, 1h; a bare number is seconds."""
    try:
        return float(text) if _is_number(text) else float(parse_duration(text))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def moment(text: str) -> float:
    """Give seconds since 1970 of a duration ago, of a date and time in ISO form, or of seconds since 1970."""
    if _is_number(text):
        return float(text)
    with suppress(ValueError):
        return time.time() - float(parse_duration(text))
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is no time; write for example 10m, 2h or 2025-01-31T12:00") from error


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()
