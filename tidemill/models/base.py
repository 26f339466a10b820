"""What all wire and file formats share: strict, frozen pydantic models, and the units people write."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema

_DURATION = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*$")
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(B|k|M|G|T|Ki|Mi|Gi|Ti)?\s*$")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_BYTES = {"B": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12} | {
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}


class Model(BaseModel):
    """Base of every format: unknown keys are refused, values do not change after they were checked."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def parse_duration(value: Any) -> Any:
    """Seconds of `90s`, `2m`, `1h`, `250ms`, `1d`; a bare number is seconds.

    Raises:
        ValueError: for anything else.
    """
    if isinstance(value, bool):
        raise ValueError("a duration is a number with a unit, such as 90s, 2m or 1h")
    if isinstance(value, int | float):
        return float(value)
    match = _DURATION.match(value) if isinstance(value, str) else None
    if not match:
        raise ValueError(f"{value!r} is not a duration; write for example 90s, 2m or 1h")
    return float(match[1]) * _SECONDS[match[2]]


def parse_size(value: Any) -> Any:
    """Bytes of `512Mi`, `4Gi`, `10M`; a bare number is bytes.

    Raises:
        ValueError: for anything else.
    """
    if isinstance(value, bool):
        raise ValueError("a size is a number with a unit, such as 512Mi or 4Gi")
    if isinstance(value, int):
        return value
    match = _SIZE.match(value) if isinstance(value, str) else None
    if not match:
        raise ValueError(f"{value!r} is not a size; write for example 512Mi or 4Gi")
    return int(float(match[1]) * _BYTES[match[2] or "B"])


_DURATION_SCHEMA: dict[str, Any] = {
    "anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": _DURATION.pattern}],
    "description": "seconds, or a number with ms, s, m, h or d",
}
_SIZE_SCHEMA: dict[str, Any] = {
    "anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": _SIZE.pattern}],
    "description": "bytes, or a number with k, M, G, T, Ki, Mi, Gi or Ti",
}
Seconds = Annotated[float, BeforeValidator(parse_duration), WithJsonSchema(_DURATION_SCHEMA)]
Bytes = Annotated[int, BeforeValidator(parse_size), WithJsonSchema(_SIZE_SCHEMA)]
