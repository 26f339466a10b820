"""The `tidemill` command: its commands by name, each loaded when it is chosen, so that `--help` stays quick.

What a command does stands twice: in one line here, for the list of commands, and in its own module, for its help. The
services (`gateway`, `placement`, `agent`) are found through the entry points of the group `tidemill.commands`, so that
this package need not know theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import click

ENTRY_POINTS = "tidemill.commands"
SECTIONS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Work": {
        "run": ("tidemill.cli.run:run", "Submit files, wait, and give the results."),
        "submit": ("tidemill.cli.run:submit", "Submit files and print the job ids."),
        "upload": ("tidemill.cli.upload:upload", "Put files into a bucket."),
        "watch": ("tidemill.cli.upload:watch", "Put each new file of a folder into a bucket."),
        "replay": ("tidemill.cli.replay:replay", "Start jobs for objects that were there before."),
        "job": ("tidemill.cli.job:job", "List, follow, cancel and retry jobs; fetch results."),
    },
    "Set up": {
        "function": ("tidemill.cli.function:function", "Write, deploy, list and delete functions."),
        "pool": ("tidemill.cli.pool:pool", "Apply, list, drain and delete pools."),
    },
    "This machine": {
        "up": ("tidemill.cli.system:up", "Start everything on this machine."),
        "down": ("tidemill.cli.system:down", "End what `up` started."),
        "status": ("tidemill.cli.system:status", "Show addresses and processes of the local system."),
        "env": ("tidemill.cli.system:env", "Print the same as shell exports."),
        "doctor": ("tidemill.cli.doctor:doctor", "Ask everything Tidemill needs, and say what to do."),
    },
    "Services": {
        "gateway": ("", "Serve the HTTP API and take bucket events."),
        "placement": ("", "Place jobs and scale pools."),
        "agent": ("", "Run functions for a pool."),
    },
}


class LazyGroup(click.Group):
    """A group that imports a command when it is chosen."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for section in SECTIONS.values() for name in section]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for section in SECTIONS.values():
            target = section.get(cmd_name, ("", ""))[0]
            if target:
                module, _, attribute = target.partition(":")
                command: click.Command = getattr(import_module(module), attribute)
                return command
        return _service(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, text) for name, (_, text) in section.items()])

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **options: Any
    ) -> Any:
        """Run, turn errors into messages and exit codes, and leave."""
        from tidemill.cli.faults import guarded

        options["standalone_mode"] = False
        guarded(lambda: super(LazyGroup, self).main(args, prog_name, **options))


def _service(name: str) -> click.Command | None:
    from importlib.metadata import entry_points

    for point in entry_points(group=ENTRY_POINTS, name=name):
        command: click.Command = point.load()
        return command
    return None


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        from tidemill import __version__

        click.echo(f"tidemill {__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with: tidemill up -d, then tidemill function init hello. `tidemill COMMAND --help` has examples.",
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")
def root() -> None:
    """Tidemill: drop a file into a bucket, get the result back, pay nothing while idle.

    The service is found through TIDEMILL_URL and TIDEMILL_TOKEN, else through the profile that `tidemill up` wrote.
    Every command takes --json. Exit codes: 0 ok, 1 a job failed, 2 wrong use, 3 timed out, 4 not allowed, 5 a service
    is not reachable.
    """
