"""What importing Tidemill brings along, and what its names are."""

import inspect
import json
import subprocess
import sys
from typing import Any

import pytest

import tidemill
from tidemill.client import AsyncClient, AsyncJob, AsyncOutput, Client, Job, Output

_HEAVY = [
    "celery",
    "redis",
    "fastapi",
    "starlette",
    "httpx",
    "pydantic",
    "pycurl",
    "minio",
    "boto3",
    "yaml",
    "rich",
    "click",
]


@pytest.mark.parametrize(
    "statement", ["import tidemill", "from tidemill import Client", "from tidemill import Context"]
)
def test_importing_brings_no_heavy_library(statement: str) -> None:
    code = f"{statement}\nimport sys, json; print(json.dumps(sorted(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    loaded = {name.partition(".")[0] for name in json.loads(out)}
    assert loaded.isdisjoint(_HEAVY), loaded & set(_HEAVY)
    assert "tidemill" in loaded


def test_making_a_client_asks_nobody_and_loads_no_http_library() -> None:
    code = "import sys; from tidemill import Client; Client('http://127.0.0.1:1'); print('httpx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_help_loads_neither_client_nor_models() -> None:
    code = "import sys, tidemill.cli.group as g\ntry: g.root.main(['--help'])\nexcept SystemExit: pass\n"
    code += "import json; print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stderr))
    assert "Usage:" in done.stdout
    assert loaded.isdisjoint({"pydantic", "httpx", "rich", "yaml", "tidemill.client", "tidemill.models"})


def test_every_lazy_name_can_be_had() -> None:
    for name in tidemill.__all__:
        assert getattr(tidemill, name) is not None
    assert set(tidemill.__all__) <= set(dir(tidemill))


def test_a_wrong_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Cleint'"):
        tidemill.Cleint  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(("one", "other"), [(Client, AsyncClient), (Job, AsyncJob), (Output, AsyncOutput)])
def test_both_clients_have_the_same_names_and_parameters(one: type, other: type) -> None:
    assert _shape(one) == _shape(other)


def _shape(cls: type) -> dict[str, Any]:
    members = inspect.getmembers(cls, lambda m: inspect.isfunction(m) or isinstance(m, property))
    public = {name: member for name, member in members if not name.startswith("_") or name == "__init__"}
    return {name: None if _is_plain(name, member) else _parameters(member) for name, member in public.items()}


def _is_plain(name: str, member: Any) -> bool:
    # A presigned address has to be asked for, so asyncio cannot have it as an attribute.
    return isinstance(member, property) or name == "url"


def _parameters(function: Any) -> list[tuple[str, Any, Any]]:
    found = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, p.default) for p in found]
