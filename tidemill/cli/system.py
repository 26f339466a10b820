"""`tidemill up`, `down`, `status` and `env`: the system of this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidemill.cli.faults import say
from tidemill.cli.show import json_option, print_json, table

if TYPE_CHECKING:
    from tidemill.local.supervisor import Event
    from tidemill.local.system import LocalSystem, Options

_state_dir = click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of its state. Default: TIDEMILL_STATE_DIR, else tidemill in the user's state folder.",
)


@click.command(
    epilog="Examples:\n\n  tidemill up\n\n  tidemill up -d --functions examples --pools pools.yaml\n\n"
    "  tidemill up --redis redis://:secret@db:6379/0 --store https://KEY:SECRET@s3.example.com"
)
@click.option("--detach", "-d", is_flag=True, help="Come back when it is ready; `tidemill down` ends it.")
@_state_dir
@click.option("--pools", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Pools file.")
@click.option(
    "--functions", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Folder of function folders."
)
@click.option(
    "--port", type=click.IntRange(1, 65535), help="Port of the API. Default: that of the last run, or a free one."
)
@click.option(
    "--events/--no-events",
    default=True,
    show_default=True,
    help="Let the own store send events; else listing finds all.",
)
@click.option("--redis", metavar="URL", help="Use this Redis in place of an own one.")
@click.option("--store", metavar="URL", help="Use this store in place of an own one: http://KEY:SECRET@host:port")
@json_option
def up(
    detach: bool,
    state_dir: Path | None,
    pools: Path | None,
    functions: Path | None,
    port: int | None,
    events: bool,
    redis: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Start store, Redis, gateway, placement and Flower on this machine, and keep them running until Ctrl-C."""
    options = _options(state_dir, pools, functions, port, events, redis, store)
    if detach:
        from tidemill.local.commands import up_detached

        _print_addresses(up_detached(lambda: _system(options, quiet=True), state_dir), as_json)
        if not as_json:
            click.echo("\nIt runs in the background; `tidemill down` ends it.")
        return
    if not as_json:
        say("Starting; Ctrl-C ends it.")
    _system(options, quiet=False).run(on_ready=lambda addresses: _ready(addresses, as_json))


@click.command(epilog="Example: tidemill down")
@_state_dir
@json_option
def down(state_dir: Path | None, as_json: bool) -> None:
    """End what `tidemill up` started, and wait until it is gone."""
    from tidemill.local.commands import down as end

    pid = end(state_dir)
    if as_json:
        print_json({"pid": pid, "stopped": True})
    else:
        click.echo(f"Ended (it was process {pid}).")


@click.command(epilog="Example: tidemill status --json | jq -r .url")
@_state_dir
@json_option
def status(state_dir: Path | None, as_json: bool) -> None:
    """Show addresses, keys and processes of the local system."""
    from tidemill.local.commands import status as ask

    found = ask(state_dir)
    if as_json:
        print_json(found)
        return
    _print_addresses(found, as_json)
    click.echo("")
    rows = [(p["name"], p["pid"], p["state"]) for p in found["processes"]]
    table(("process", "pid", "state"), rows)


@click.command(epilog='Example: eval "$(tidemill env)"')
@_state_dir
@json_option
def env(state_dir: Path | None, as_json: bool) -> None:
    """Print addresses and keys of the local system as shell exports."""
    from tidemill.local.commands import env_exports, environment

    if as_json:
        print_json(environment(state_dir))
    else:
        click.echo(env_exports(state_dir), nl=False)


def _options(
    state_dir: Path | None,
    pools: Path | None,
    functions: Path | None,
    port: int | None,
    events: bool,
    redis: str | None,
    store: str | None,
) -> Options:
    from tidemill.local.system import Options

    _check_files(pools, functions)
    chosen: dict[str, Any] = {} if state_dir is None else {"state_dir": state_dir}
    return Options(
        port=port, pools_file=pools, functions_dir=functions, events=events, redis_url=redis, store_url=store, **chosen
    )


def _check_files(pools: Path | None, functions: Path | None) -> None:
    """Refuse a wrong file here, with its line, and not in the log of a service."""
    if pools is None and functions is None:
        return
    from tidemill.models.files import load_function, load_pools

    if pools is not None:
        load_pools(pools)
    if functions is not None:
        found = sorted(path.parent for path in functions.glob("*/function.yaml"))
        if not found:
            raise click.BadParameter(f"{functions} holds no folder with a function.yaml", param_hint="--functions")
        for folder in found:
            load_function(folder)


def _system(options: Options, *, quiet: bool) -> LocalSystem:
    from tidemill.local.system import LocalSystem

    return LocalSystem(options, tell=_tell_log if quiet else _tell)


def _ready(addresses: dict[str, Any], as_json: bool) -> None:
    _print_addresses(addresses, as_json)
    if not as_json:
        say("\nReady. Ctrl-C ends it.")
    sys.stdout.flush()


def _print_addresses(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json({name: found[name] for name in ("url", "token", "redis", "flower", "store")})
        return
    store = found["store"]
    rows = [("API", found["url"]), ("API description", f"{found['url']}/openapi.json"), ("token", found["token"])]
    rows += [("Flower", found["flower"]), ("store", store["endpoint"])]
    rows += [("access key", store["access_key"]), ("secret key", store["secret_key"])]
    for name, value in rows:
        click.echo(f"{name:<18}{value}")


def _tell(event: Event) -> None:
    if event.what in {"ended", "restarting", "unready"}:
        say(_sentence(event))


def _tell_log(event: Event) -> None:
    click.echo(_sentence(event))


def _sentence(event: Event) -> str:
    parts = [event.name, event.what]
    if event.status is not None:
        parts.append(f"with status {event.status}" if event.status >= 0 else f"by signal {-event.status}")
    if event.pause_s is not None:
        parts.append(f"in {event.pause_s:.1f} s")
    if event.detail:
        parts.append(f"({event.detail})")
    return " ".join(parts)
