"""`tidemill pool`: apply, list, show, drain, resume, delete."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tidemill.cli.connect import connect
from tidemill.cli.show import dollars, json_option, pairs, print_json, table


@click.group(epilog="Example: tidemill pool apply pools.yaml && tidemill pool list")
def pool() -> None:
    """Pools: agents of one kind in one place, with a price."""


@pool.command("apply", epilog="Example: tidemill pool apply pools.yaml")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@json_option
def apply(file: Path, as_json: bool) -> None:
    """Put the pools of a pools file in place; pools that it does not name stay as they are."""
    _print(connect().apply_pools(file), as_json)


@pool.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the pools."""
    _print(connect().pools(), as_json)


@pool.command("show")
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """Show a pool."""
    _show(connect().pool(name), as_json)


@pool.command("drain")
@click.argument("name")
@json_option
def drain(name: str, as_json: bool) -> None:
    """Let a pool finish what it runs, and give it no more."""
    _show(connect().drain_pool(name), as_json)


@pool.command("resume")
@click.argument("name")
@json_option
def resume(name: str, as_json: bool) -> None:
    """Let a drained pool take work again."""
    _show(connect().resume_pool(name), as_json)


@pool.command("delete")
@click.argument("name")
@json_option
def delete(name: str, as_json: bool) -> None:
    """Delete a pool: its agents give their jobs back and end."""
    connect().delete_pool(name)
    if as_json:
        print_json({"name": name, "deleted": True})
    else:
        click.echo(f"Deleted {name}.")


def _print(pools: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(pools)
        return
    columns = ("name", "cloud", "region", "gpu", "slots", "usd/h", "agents", "state")
    table(columns, [_row(entry) for entry in pools], empty="No pools; see `tidemill pool apply`.")


def _row(entry: dict[str, Any]) -> tuple[Any, ...]:
    price, agents = entry.get("price"), entry.get("agents") or {}
    usd = dollars(price.get("usd_per_hour")) if isinstance(price, dict) else price
    live = entry.get("live") or {}
    wanted = f"{live.get('agents', 0)} of {agents.get('min', 0)}-{agents.get('max', 1)}"
    gpu = (entry.get("gpu") or {}).get("kind") or "-"
    state = "draining" if entry.get("draining") else "open"
    return entry["name"], entry.get("cloud"), entry.get("region"), gpu, entry.get("slots"), usd, wanted, state


def _show(entry: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(entry)
        return
    live = ", ".join(f"{name} {count}" for name, count in (entry.get("live") or {}).items())
    pairs({**entry, "draining": "yes" if entry.get("draining") else None, "live": live})
