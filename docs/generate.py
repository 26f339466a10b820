"""Write the reference pages that are made from the code: schemas, settings, errors. `tests/docs` compares them.

python docs/generate.py            # write
python docs/generate.py --check    # exit 1 when a page is not what the code says
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from tidemill import errors, models
from tidemill.cli.group import root
from tidemill.record import Record
from tidemill.settings import GatewaySettings, IntakeSettings, Settings
from tidemill.testing import MemoryLedger, MemoryStore
from tidemill_gateway.api import create_app
from tidemill_gateway.api.problems import COMMON
from tidemill_gateway.services import Services

REFERENCE = Path(__file__).parent / "reference"
SCHEMAS: dict[str, type[BaseModel]] = {
    "function": models.FunctionSpec,
    "pools": models.PoolsFile,
    "job": models.Job,
    "event": models.BucketEvent,
    "commit": models.CommitRecord,
    "manifest": models.Manifest,
    "request": models.RequestRecord,
}


def pages() -> Iterator[tuple[Path, str]]:
    """Give each generated page: its path and its text."""
    for name, model in SCHEMAS.items():
        yield REFERENCE / "schemas" / f"{name}.json", json.dumps(model.model_json_schema(), indent=2) + "\n"
    yield REFERENCE / "settings.md", settings_page()
    yield REFERENCE / "errors.md", errors_page()
    yield REFERENCE / "command-line.md", commands_page()
    yield REFERENCE / "http.md", http_page()


def settings_page() -> str:
    lines = [
        "# Settings",
        "",
        "Each setting is an environment variable, or a key of the TOML file that `TIDEMILL_CONFIG` names.",
        "The environment comes before the file.",
        "Only services read them; the client has three of its own: `TIDEMILL_URL`, `TIDEMILL_TOKEN`, the profile file.",
        "",
    ]
    for name, field in Settings.model_fields.items():
        group = field.annotation
        if isinstance(group, type) and issubclass(group, BaseModel):
            lines += [f"## {name}", "", "| variable | default | what it does |", "|---|---|---|"]
            lines += [_row(f"TIDEMILL_{name}__{key}".upper(), inner) for key, inner in group.model_fields.items()]
            lines.append("")
    lines += ["## The rest", "", "| variable | default | what it does |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        if not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            lines.append(_row(f"TIDEMILL_{name}".upper(), field))
    return "\n".join(lines) + "\n"


def _row(variable: str, field: FieldInfo) -> str:
    default: Any = field.default
    shown = default.get_secret_value() if hasattr(default, "get_secret_value") else default
    text = "" if shown in (None, "", ()) else f"`{shown}`"
    return f"| `{variable}` | {text} | {' '.join((field.description or '').split())} |"


def errors_page() -> str:
    lines = [
        "# Errors",
        "",
        "The `code` of a problem document and of a client's exception is stable; the sentence and the hint may change.",
        "",
        "| code | class | HTTP | hint |",
        "|---|---|---|---|",
    ]

    def rows(cls: type[errors.TidemillError]) -> Iterator[str]:
        yield f"| `{cls.code}` | `{cls.__name__}` | {cls.status} | {cls.default_hint} |"
        for child in cls.__subclasses__():
            if child.__module__ == errors.__name__:  # a room's own errors never leave it
                yield from rows(child)

    jobs = [
        "",
        "## Codes of jobs",
        "",
        "`error.code` of a job that failed or was cancelled, and what to do when the job itself says nothing.",
        "",
        "| code | hint |",
        "|---|---|",
    ]
    jobs += [f"| `{code}` | {hint} |" for code, hint in errors.JOB_HINTS.items()]
    return "\n".join([*lines, *rows(errors.TidemillError), *jobs]) + "\n"


def commands_page() -> str:
    """Every command with its own help text."""
    lines = ["# Command line", "", "What `tidemill COMMAND --help` says; `-h` is the same.", ""]
    common = {"help_option_names": root.context_settings["help_option_names"], "terminal_width": 100}

    def walk(command: click.Command, names: tuple[str, ...]) -> None:
        with click.Context(command, info_name=" ".join(names), max_content_width=100, **common) as context:
            lines.extend([f"## {' '.join(names)}", "", "```", command.get_help(context), "```", ""])
            if isinstance(command, click.Group):
                for name in command.list_commands(context):
                    if (inner := command.get_command(context, name)) is not None:
                        walk(inner, (*names, name))

    walk(root, ("tidemill",))
    return "\n".join(lines)


def http_page() -> str:
    """Every route of the gateway, from its OpenAPI document."""
    services = Services(
        ledger=MemoryLedger(),
        record=Record(MemoryStore()),
        store=MemoryStore(),
        bell=lambda job_id, function: "",
        gateway=GatewaySettings(token=SecretStr("x")),
        intake=IntakeSettings(),
    )
    lines = [
        "# HTTP, version 1",
        "",
        "The gateway serves the whole description at `/openapi.json`.",
        "All but `/healthz` and `/hooks` want `Authorization: Bearer TOKEN`; `tidemill status` prints the token.",
        "A refusal is a problem document (RFC 9457) with `code`, `detail`, `hint`, `request_id`: [errors](errors.md).",
        f"They may all refuse with {', '.join(map(str, COMMON))}; the table has what else a route may say.",
        "",
        "| route | what it does | refusals |",
        "|---|---|---|",
    ]
    for path, methods in create_app(services).openapi()["paths"].items():
        for method, operation in methods.items():
            text = operation.get("summary") or ""
            refusals = ", ".join(sorted(s for s in operation["responses"] if s >= "400" and int(s) not in COMMON))
            lines.append(f"| `{method.upper()} {path}` | {' '.join(text.split())} | {refusals} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    check = "--check" in sys.argv[1:]
    stale = 0
    for path, text in pages():
        if path.exists() and path.read_text() == text:
            continue
        stale += 1
        if check:
            print(f"{path} is not what the code says; run: python docs/generate.py", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"wrote {path}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
