"""`tidemill doctor`: every dependency, one line each, with the remedy. It also works when nothing runs.

What a service says of its own dependencies (`/readyz`) is taken from it; the rest is looked at from here. A check gives
its finding and never raises: an error in one must not hide the others.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import click

from tidemill.cli.connect import connect
from tidemill.cli.faults import NOT_REACHABLE
from tidemill.cli.show import json_option, on_terminal, print_json, table
from tidemill.errors import NotFound, TidemillError

_LITTLE_SPACE = 2 * 2**30
_RECORDS_NAMED = 3
# The gateway does not start with a store that ignores conditions, so one that serves has tried it.
_PROVED = {"store": "answers, and honours conditional PUT", "ledger": "Redis answers, and has an epoch"}
_REMEDIES = {
    "store": "Check the S3 store, and TIDEMILL_STORE__ENDPOINT and the keys of the gateway.",
    "ledger": "Check Redis and TIDEMILL_REDIS__URL of the gateway, and that `tidemill placement` runs.",
}
_START = "Start it with `tidemill up -d`, or set TIDEMILL_URL."


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: `ok`, `warning` (works, but), `failed`, or `skipped` (not needed here, or cannot be asked)."""

    name: str
    state: Literal["ok", "warning", "failed", "skipped"]
    detail: str
    remedy: str = ""


@click.command(epilog="Example: tidemill doctor --json | jq '.[] | select(.state == \"failed\")'")
@click.option("--state-dir", type=click.Path(file_okay=False, path_type=Path), help="State folder of the local system.")
@json_option
@click.pass_context
def doctor(ctx: click.Context, state_dir: Path | None, as_json: bool) -> None:
    """Ask everything Tidemill needs, and say what to do. Ends with 5 when something does not work."""
    found = list(examine(state_dir))
    if as_json:
        print_json([asdict(finding) for finding in found])
    elif on_terminal():
        table(("what", "state", "found", "what to do"), [(f.name, f.state, f.detail, f.remedy) for f in found])
    else:
        for f in found:
            click.echo(f"{f.state}\t{f.name}\t{f.detail}" + (f"\tNext: {f.remedy}" if f.remedy else ""))
    ctx.exit(NOT_REACHABLE if any(f.state == "failed" for f in found) else 0)


def examine(state_dir: Path | None = None) -> Iterator[Finding]:
    """Give all findings."""
    yield _python()
    system = _local(state_dir)
    yield system
    yield from _service()
    yield from _guard("flower", lambda: _flower(state_dir))
    yield from _guard("uv", _uv)
    yield from _guard("isolation", _isolation)
    yield from _guard("disk", lambda: _disk(state_dir))
    if system.state != "ok":
        yield from _guard("ports", _ports)


def _guard(name: str, check: Callable[[], Finding]) -> Iterator[Finding]:
    try:
        yield check()
    except Exception as error:  # noqa: BLE001  (the finding is the error)
        yield Finding(name, "failed", f"{type(error).__name__}: {error}", getattr(error, "hint", ""))


def _python() -> Finding:
    from tidemill import __version__

    return Finding("tidemill", "ok", f"{__version__} on Python {sys.version.split()[0]}")


def _local(state_dir: Path | None) -> Finding:
    name = "local system"
    try:
        from tidemill.local.commands import status

        found = status(state_dir)
    except ModuleNotFoundError as error:
        return Finding(name, "skipped", f"{error.name} is not installed", "pip install 'tidemill[local]' brings it.")
    except TidemillError as error:
        return Finding(name, "skipped", str(error), error.hint)
    bad = [f"{p['name']} is {p['state']}" for p in found["processes"] if p["state"] != "running"]
    if bad:
        return Finding(name, "warning", ", ".join(bad), "Read the folder `logs` of the state folder.")
    return Finding(name, "ok", f"{len(found['processes'])} processes run")


def _service() -> Iterator[Finding]:
    try:
        client = connect()
        answer = client._run(client._catalogue.readiness())
    except TidemillError as error:
        yield Finding("gateway", "failed", error.message, error.hint)
        yield Finding("redis, store", "skipped", "the gateway asks them, and it does not answer", _START)
        return
    yield Finding("gateway", "ok", f"{client.url} answers and takes the token")
    for name, said in sorted((answer.get("checks") or {}).items()):
        yield _dependency(name, said)
    if isinstance(events := answer.get("events"), dict):
        yield _events(events)
    yield from _guard("pools", lambda: _pools(client))
    yield from _guard("records", lambda: _records(client))


def _dependency(name: str, said: str) -> Finding:
    if said == "ok":
        return Finding(name, "ok", _PROVED.get(name, "answers"))
    return Finding(name, "failed", said, _REMEDIES.get(name, "Read the log of the gateway."))


def _events(said: dict[str, Any]) -> Finding:
    """Events only make it faster: that they do not come is no failure."""
    detail = str(said.get("detail") or "")
    if said.get("ok") is False:
        return Finding(
            "events",
            "warning",
            detail,
            "Check the webhook of the store: its address, its token (TIDEMILL_GATEWAY__HOOK_SECRET), and on MinIO "
            "TIDEMILL_INTAKE__NOTIFY_ARN (docs/how-to/use-minio.md).",
        )
    return Finding("events", "ok" if said.get("ok") else "skipped", detail)


def _pools(client: Any) -> Finding:
    pools = client.pools()
    if not pools:
        return Finding("pools", "warning", "there is none, so no job can run", "Apply one: tidemill pool apply FILE")
    return Finding("pools", "ok", f"{len(pools)} known")


def _records(client: Any) -> Finding:
    """What cannot be read is left out of listings and rebuilds; all the rest works."""
    try:
        damaged = client._run(client._catalogue.damaged())
    except NotFound:
        return Finding("records", "skipped", "this gateway is older than this command, and does not say")
    if not damaged:
        return Finding("records", "ok", "every record that was looked at can be read")
    named = ", ".join(entry["key"] for entry in damaged[:_RECORDS_NAMED])
    more = f" and {len(damaged) - _RECORDS_NAMED} more" if len(damaged) > _RECORDS_NAMED else ""
    return Finding(
        "records",
        "warning",
        f"{len(damaged)} in the platform bucket cannot be read: {named}{more}",
        "Deploy the function or apply the pool again; read others with any S3 client, put an older version back, or "
        "delete them: Tidemill then forgets what they say.",
    )


def _flower(state_dir: Path | None) -> Finding:
    try:
        from tidemill.local.commands import status

        address = str(status(state_dir)["flower"])
    except (TidemillError, ModuleNotFoundError) as error:
        return Finding("flower", "skipped", str(error), "It comes with `tidemill up`.")
    from urllib.parse import urlsplit

    import httpx

    parts = urlsplit(address)
    place = f"{parts.scheme}://{parts.hostname}:{parts.port}"
    try:
        answer = httpx.get(f"{place}/healthcheck", timeout=5.0, trust_env=False)
    except httpx.HTTPError as error:
        return Finding(
            "flower", "failed", f"{place} does not answer: {error}", "Read logs/flower.log in the state folder."
        )
    good = answer.status_code == 200
    return Finding("flower", "ok" if good else "failed", f"{place} answers {answer.status_code}")


def _uv() -> Finding:
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        return Finding(
            "uv",
            "warning",
            "not found: functions with `environment: requirements` cannot run on this machine",
            "pip install 'tidemill[worker]' brings it.",
        )
    return Finding("uv", "ok", found)


def _isolation() -> Finding:
    try:
        # By name: this package must not know the workers, and a bare installation has not what they need.
        runners = import_module("tidemill_workers.agent.runners")
    except ModuleNotFoundError as error:
        return Finding("isolation", "skipped", f"no agent runs here ({error.name} is not installed)")
    found = runners.describe_isolation(Path(sys.executable))
    held = [text for text, good in (("its own user", found.user), ("Landlock", found.landlock_abi > 0)) if good]
    missing = [*found.missing]
    if found.agent_hidden is False:
        missing.append("a function can read the agent's environment or open files")
    if found.files_hidden is False:
        missing.append("a function can read files of the agent's user")
    if not missing:
        return Finding("isolation", "ok", f"runners are shut in by {', '.join(held) or 'nothing'}")
    other = "let other users reach what is named (chmod o+x)" if os.geteuid() == 0 else "run agents as root"
    remedy = f"Run only functions that you trust here, or {other}."
    return Finding("isolation", "warning", "; ".join(missing), remedy)


def _disk(state_dir: Path | None) -> Finding:
    folder = _existing(state_dir or _default_state_dir())
    free = shutil.disk_usage(folder).free
    detail = f"{free / 2**30:.1f} GiB free below {folder}"
    if free < _LITTLE_SPACE:
        return Finding("disk", "warning", detail, "Make room, or choose another folder with --state-dir.")
    return Finding("disk", "ok", detail)


def _default_state_dir() -> Path:
    import os

    chosen = os.environ.get("TIDEMILL_STATE_DIR") or os.environ.get("XDG_STATE_HOME")
    return Path(chosen) if chosen else Path.home()


def _existing(path: Path) -> Path:
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())


def _ports() -> Finding:
    from tidemill.local.ports import Reservation

    with Reservation() as ports:
        port = ports.take_pair()
    return Finding("ports", "ok", f"loopback has free ones, for example {port}")
