"""The `tidemill` command. `main` is its entry point; commands are loaded when they are chosen."""

from __future__ import annotations

import sys

_INTERRUPTED = 130


def main() -> None:
    """Run the command line of this process and exit. Ctrl-C is no traceback, also while all this is loaded."""
    try:
        from tidemill.cli.group import root

        root.main(prog_name="tidemill")
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        _leave_at_once()
    except SystemExit as end:
        if end.code == _INTERRUPTED:
            _leave_at_once()
        raise


def _leave_at_once() -> None:
    """End without waiting for the threads of calls whose answer is still to come, which may take half a minute."""
    import os

    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            continue  # nobody reads it any more
    os._exit(_INTERRUPTED)
