"""The command line in a test."""

import json
from collections.abc import Callable
from typing import Any

from click.testing import Result

Tidemill = Callable[..., Result]


def read(result: Result) -> Any:
    """Give the JSON that a command printed, which ended well."""
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)
