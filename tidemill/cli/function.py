"""`tidemill function`: init, deploy, list, show, delete."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from tidemill.cli.connect import connect
from tidemill.cli.faults import complain, exit_code
from tidemill.cli.show import json_option, moment, pairs, print_json, table
from tidemill.errors import Conflict, InvalidSpec, TidemillError

_NAME = re.compile(r"[a-z][a-z0-9-]{0,38}")
_SPEC = """\
name: {name}
handler: {module}:{module}
# Each file that appears in this bucket below this prefix is a job. Without a trigger the function is for calls only.
# trigger: {{bucket: inbox, prefix: {name}/}}
# output: {{bucket: outbox, prefix: {name}/}}
resources: {{cpu: 1, memory: 256Mi}}
limits: {{timeout: 1m, attempts: 3}}
params:
  greeting: {{type: string, default: Hello}}
"""
_CODE = '''\
"""A function of Tidemill. Try it without a service: see `tidemill.File` and `tidemill.Context`."""

from tidemill import Context, File


def {module}(file: File, ctx: Context):
    """Count the bytes and lines of a file. What it returns becomes result.json."""
    content = file.read()
    ctx.log.info("read %d bytes", len(content))
    greeting = ctx.params.get("greeting", "Hello")
    return {{"greeting": f"{{greeting}}, {{file.name}}!", "bytes": len(content), "lines": content.count(b"\\n")}}
'''


@click.group(epilog="Example: tidemill function init hello && tidemill function deploy hello")
def function() -> None:
    """Functions: what owners deploy."""


@function.command("init", epilog="Example: tidemill function init hello")
@click.argument("name")
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), help="Where to write it. Default: ./NAME")
@json_option
def init(name: str, folder: Path | None, as_json: bool) -> None:
    """Write a function that works: function.yaml and its code."""
    if not _NAME.fullmatch(name):
        raise InvalidSpec(
            f"{name!r} is no name of a function.", hint="Use small letters, digits and -, first a letter, at most 39."
        )
    target = folder or Path(name)
    if target.exists() and any(target.iterdir()):
        raise Conflict(f"{target} is there and not empty.", hint="Choose another name, or --folder.")
    target.mkdir(parents=True, exist_ok=True)
    module = name.replace("-", "_")
    files = {"function.yaml": _SPEC.format(name=name, module=module), f"{module}.py": _CODE.format(module=module)}
    for file, text in files.items():
        (target / file).write_text(text, encoding="utf-8")
    if as_json:
        print_json({"name": name, "folder": str(target), "files": sorted(files)})
        return
    click.echo(f"Wrote {target}: {', '.join(sorted(files))}")
    click.echo(f"Next: tidemill function deploy {target}, then tidemill run {name} FILE")


@function.command("deploy", epilog="Example: tidemill function deploy functions/ocr functions/caption")
@click.argument("folders", nargs=-1, required=True, metavar="PATH...", type=click.Path(path_type=Path))
@json_option
@click.pass_context
def deploy(ctx: click.Context, folders: tuple[Path, ...], as_json: bool) -> None:
    """Check and deploy the functions in these folders. An unchanged function stays as it is."""
    client = connect()
    done: list[dict[str, Any]] = []
    code = 0
    for folder in folders:
        try:
            done.append(client.deploy(folder))
        except TidemillError as error:
            complain(error)
            code = max(code, exit_code(error))
    if as_json:
        print_json(done)
    else:
        for entry in done:
            click.echo(f"{_spec(entry)['name']}\trevision {entry.get('revision')}")
    ctx.exit(code)


@function.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the deployed functions."""
    found = connect().functions()
    if as_json:
        print_json(found)
        return
    rows = []
    for entry in found:
        if entry.get("deleted_at") is not None:
            continue
        spec = _spec(entry)
        runs = spec.get("handler") or " ".join(spec.get("command") or ())
        rows.append((spec["name"], entry.get("revision"), runs, _triggers(spec), moment(entry.get("deployed_at"))))
    table(
        ("name", "revision", "runs", "triggers", "deployed"), rows, empty="No functions; see `tidemill function init`."
    )


@function.command("show")
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """Show a function as it is deployed."""
    entry = connect().function(name)
    if as_json:
        print_json(entry)
        return
    spec = dict(_spec(entry))
    known = {"name": spec.pop("name"), "revision": entry.get("revision"), "deployed": moment(entry.get("deployed_at"))}
    pairs(known | {"triggers": _triggers(spec)} | {k: v for k, v in spec.items() if k != "trigger"})


@function.command("delete")
@click.argument("name")
@json_option
def delete(name: str, as_json: bool) -> None:
    """Delete a function. Its queued jobs are cancelled, running ones finish; none of your objects is deleted."""
    connect().delete_function(name)
    if as_json:
        print_json({"name": name, "deleted": True})
    else:
        click.echo(f"Deleted {name}.")


def _spec(entry: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = entry["spec"]
    return spec


def _triggers(spec: dict[str, Any]) -> str:
    return ", ".join(f"{t['bucket']}/{t.get('prefix', '')}" for t in spec.get("trigger") or ())
