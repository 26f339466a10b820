"""The `tidemill` command. `main` is its entry point; commands are loaded when they are chosen."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line of this process and exit. Ctrl-C is no traceback, also while all this is loaded."""
    try:
        from tidemill.cli.group import root

        root.main(prog_name="tidemill")
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        sys.exit(130)
