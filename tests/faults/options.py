"""The command line of the lab, as the runs that it asks for."""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

from tests.faults.lab import ALL, Choice
from tests.faults.schedule import chosen

EXAMPLES = """examples:
  python -m tests.faults                                  one unknown seed, two minutes, every fault
  python -m tests.faults --seed 7 --minutes 1 --jobs 100  this seed: the same files and faults each time
  python -m tests.faults --seeds 1-20 --jobs 200          the long lab (make soak)
  python -m tests.faults --seed 7 --faults kill,redis     only these kinds of faults
  python -m tests.faults --faults redis:flush,kill:agent  only these faults of a kind
  python -m tests.faults --faults failpoints:kill:ending.committed --gap 1
  python -m tests.faults --seed 7 --plan                  print what would happen, and start nothing

exit status: 0 nothing was violated, 1 something was, 2 wrong use
"""


def choices(arguments: Sequence[str] | None = None) -> list[Choice]:
    """Give the runs that a command line asks for; ends the process with status 2 when it is wrong."""
    return choices_of(parser().parse_args(arguments))


def choices_of(options: argparse.Namespace) -> list[Choice]:
    return [
        Choice(
            seed,
            jobs=options.jobs,
            minutes=options.minutes,
            faults=options.faults,
            gap_s=options.gap,
            settle_s=options.settle,
            keep=options.keep,
            protections_off=options.without,
        )
        for seed in _seeds(options)
    ]


def _kinds(text: str) -> tuple[str, ...]:
    if text in ("all", "none"):
        return ALL if text == "all" else ()
    kinds = tuple(filter(None, text.split(",")))
    try:
        chosen(kinds)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return kinds


def _seeds(options: argparse.Namespace) -> list[int]:
    if options.seeds is not None:
        first, _, last = options.seeds.partition("-")
        return list(range(int(first), int(last or first) + 1))
    return [options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description="Start the real system, drop files in all ways, break what a seed says, and count what was lost, "
        "doubled, torn, stuck, wrong or leaked.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--seed", type=int, help="the seed of files and faults; default: an unknown one")
    made.add_argument("--seeds", metavar="A-B", help="several seeds, one after the other")
    made.add_argument("--minutes", type=float, default=2.0, help="how long files come and faults happen (default 2)")
    made.add_argument("--jobs", type=int, default=200, help="how many files are dropped (default 200)")
    made.add_argument(
        "--faults", type=_kinds, default=ALL, help=f"kinds, with commas between: {', '.join(ALL)} (default all)"
    )
    made.add_argument("--gap", type=float, default=3.0, help="seconds between two faults, on average (default 3)")
    made.add_argument("--settle", type=float, default=120.0, help="longest wait afterwards, in seconds (default 120)")
    made.add_argument("--plan", action="store_true", help="print the faults of the seed, and start nothing")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the results there, too")
    made.add_argument("--keep", type=Path, metavar="DIR", help="keep the folders of all runs below this one")
    made.add_argument(
        "--without",
        type=lambda text: Path(text).absolute(),
        metavar="DIR",
        help="take a protection away: a folder of mutants/",
    )
    made.add_argument("--quiet", action="store_true", help="print results only")
    return made
