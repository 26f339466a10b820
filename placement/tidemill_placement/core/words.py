"""Numbers as people read them."""

from __future__ import annotations

import math


def money(usd: float) -> str:
    """`$0.00004`: at most two digits that matter, never an exponent."""
    if usd <= 0:
        return "$0"
    digits = max(2, 1 - math.floor(math.log10(usd))) if usd < 1 else 2
    text = f"{usd:.{digits}f}"
    return "$" + (text.rstrip("0").rstrip(".") if digits > 2 else text)


def rate(usd_per_hour: float) -> str:
    return f"${usd_per_hour:g}/h"


def duration(seconds: float) -> str:
    """`85 ms`, `1.2 s`, `3 min`."""
    if seconds < 0.095:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def gibibytes(size: int) -> str:
    return f"{size / 2**30:g} GiB" if size >= 2**30 else f"{size / 2**20:g} MiB"
