"""`python -m tests.faults`: run seeds of the fault lab and judge them."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path

from tests.faults import report
from tests.faults.lab import ALL, Choice, Result, run
from tests.faults.schedule import faults as faults_of
from tests.faults.system import LEASE_S
from tests.faults.toxiproxy import ToolMissing

EXAMPLES = """examples:
  python -m tests.faults                                  one unknown seed, two minutes, every fault
  python -m tests.faults --seed 7 --minutes 1 --jobs 100  this seed: the same files and faults each time
  python -m tests.faults --seeds 1-20 --jobs 200          the long lab (make soak)
  python -m tests.faults --seed 7 --faults kill,redis     only these kinds of faults
  python -m tests.faults --seed 7 --plan                  print what would happen, and start nothing

exit status: 0 nothing was violated, 1 something was, 2 wrong use
"""


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    kinds = tuple(ALL if options.faults == "all" else filter(None, options.faults.split(",")))
    if unknown := sorted(set(kinds) - {*ALL, "none"}):
        print(f"--faults: there is no {', '.join(unknown)}; there are: {', '.join(ALL)}", file=sys.stderr)
        return 2
    results: list[Result] = []
    try:
        for seed in _seeds(options):
            choice = Choice(
                seed,
                jobs=options.jobs,
                minutes=options.minutes,
                faults=kinds,
                gap_s=options.gap,
                settle_s=options.settle,
                keep=options.keep,
                protections_off=options.without,
            )
            if options.plan:
                print(f"seed {seed}")
                for fault in faults_of(seed, kinds, choice.window_s, choice.gap_s, LEASE_S):
                    print(fault)
                continue
            results.append(_one(choice, quiet=options.quiet))
    except KeyboardInterrupt:
        print("\ninterrupted; everything that was started has ended", file=sys.stderr)
    except ToolMissing as error:
        print(f"{error}; or leave `connection` out of --faults", file=sys.stderr)
        return 2
    if results:
        print(report.table(results))
        print(report.recovery(results))
    if options.json is not None:
        options.json.write_text(json.dumps([result.as_json() for result in results], indent=1) + "\n")
    return 1 if any(not result.verdict.clean for result in results) else 0


def _one(choice: Choice, *, quiet: bool) -> Result:
    began = time.monotonic()

    def tell(sentence: str) -> None:
        if not quiet:
            print(f"[{time.monotonic() - began:6.1f}] {sentence}", flush=True)

    print(choice.command(), flush=True)
    result = run(choice, tell)
    facts = ", ".join(f"{name} {number}" for name, number in result.verdict.facts.items())
    print(f"seed {choice.seed}: {'clean' if result.verdict.clean else 'VIOLATED'}; {facts}", flush=True)
    if said := report.sentences(result):
        print(said, flush=True)
    return result


def _seeds(options: argparse.Namespace) -> list[int]:
    if options.seeds is not None:
        first, _, last = options.seeds.partition("-")
        return list(range(int(first), int(last or first) + 1))
    return [options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description="Start the real system, drop files in all ways, break what a seed says, and count what was lost, "
        "doubled, torn, stuck, wrong or leaked.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, help="the seed of files and faults; default: an unknown one")
    parser.add_argument("--seeds", metavar="A-B", help="several seeds, one after the other")
    parser.add_argument("--minutes", type=float, default=2.0, help="how long files come and faults happen (default 2)")
    parser.add_argument("--jobs", type=int, default=200, help="how many files are dropped (default 200)")
    parser.add_argument("--faults", default="all", help=f"kinds, with commas between: {', '.join(ALL)} (default all)")
    parser.add_argument("--gap", type=float, default=3.0, help="seconds between two faults, on average (default 3)")
    parser.add_argument("--settle", type=float, default=120.0, help="longest wait afterwards, in seconds (default 120)")
    parser.add_argument("--plan", action="store_true", help="print the faults of the seed, and start nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, too")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the folders of all runs below this one")
    parser.add_argument("--without", type=Path, metavar="DIR", help="take a protection away: a folder of mutants/")
    parser.add_argument("--quiet", action="store_true", help="print results only")
    return parser


if __name__ == "__main__":
    sys.exit(main())
