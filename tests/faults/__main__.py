"""`python -m tests.faults`: run seeds of the fault lab and judge them."""

from __future__ import annotations

import json
import signal
import sys
import time

from tests.faults import report, schedule
from tests.faults.lab import Choice, Result, run
from tests.faults.options import choices_of, parser
from tests.faults.system import LEASE_S
from tests.faults.toxiproxy import ToolMissing


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    results: list[Result] = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    interrupted = False
    try:
        for choice in choices_of(options):
            if options.plan:
                _plan(choice)
            else:
                results.append(_one(choice, quiet=options.quiet))
    except KeyboardInterrupt:
        interrupted = True
        print("\ninterrupted; everything that was started has ended", file=sys.stderr)
    except ToolMissing as error:
        print(f"{error}; or leave `connection` out of --faults", file=sys.stderr)
        return 2
    if results:
        print(report.table(results))
        print(report.recovery(results))
    if options.json is not None:
        options.json.write_text(json.dumps([result.as_json() for result in results], indent=1) + "\n")
    if interrupted:
        return 130
    return 1 if any(not result.verdict.clean for result in results) else 0


def _plan(choice: Choice) -> None:
    print(f"seed {choice.seed}")
    for fault in schedule.faults(choice.seed, choice.faults, choice.window_s, choice.gap_s, LEASE_S):
        print(fault)


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


if __name__ == "__main__":
    sys.exit(main())
