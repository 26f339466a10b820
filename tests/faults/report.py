"""What people and scripts read of runs: a table, the sentences of what went wrong, and JSON."""

from __future__ import annotations

from collections.abc import Sequence

from tests.faults.checker import COUNTS
from tests.faults.lab import Result


def table(results: Sequence[Result]) -> str:
    """One line for each run, one for all of them."""
    head = ["seed", "jobs", "faults", "points", *COUNTS, "settled"]
    rows = [
        [
            str(result.choice.seed),
            str(result.verdict.facts.get("jobs", 0)),
            str(len(result.strikes)),
            str(len(result.hits)),
            *(str(len(result.verdict.found[kind])) for kind in COUNTS),
            f"{result.settled_s:.0f} s",
        ]
        for result in results
    ]
    if len(results) > 1:
        numbers = [[int(cell) for cell in row[1:-1]] for row in rows]
        most = max(result.settled_s for result in results)
        rows.append(["all", *(str(sum(column)) for column in zip(*numbers, strict=True)), f"{most:.0f} s"])
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in [head, *rows]
    )


def sentences(result: Result, most: int = 12) -> str:
    """What was violated, and how to see it again."""
    lines = []
    for kind, said in result.verdict.found.items():
        lines += [f"{kind}: {sentence}" for sentence in said[:most]]
        if len(said) > most:
            lines.append(f"{kind}: and {len(said) - most} more")
    if lines:
        lines.append(f"again: {result.choice.command()}")
        lines.append(f"logs:  {result.folder}")
    return "\n".join(lines)


def recovery(results: Sequence[Result]) -> str:
    """Seconds from a kill to the next progress: median and most."""
    lines = []
    kinds = sorted({kind for result in results for kind in result.delays})
    for kind in kinds:
        delays = sorted(delay for result in results for delay in result.delays.get(kind, []))
        middle = delays[len(delays) // 2]
        lines.append(f"killed {kind:<10} {len(delays):>3} times: p50 {middle:5.1f} s, max {delays[-1]:5.1f} s")
    return "\n".join(lines)
