"""The `tidemill` command. `main` is its entry point; commands are loaded when they are chosen."""

from __future__ import annotations


def main() -> None:
    """Run the command line of this process and exit."""
    from tidemill.cli.group import root

    root.main(prog_name="tidemill")
