"""Every end of a job that is no success says what to do next."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import Tidemill
from tests.support.fake_gateway import FakeGateway
from tidemill.client.problems import job_error
from tidemill.client.values import Snapshot
from tidemill.errors import JOB_HINTS
from tidemill_workers.runner.failures import CODES

ROOT = Path(__file__).parents[2]
SOURCES = ("tidemill/record", "gateway/tidemill_gateway", "placement/tidemill_placement", "workers/tidemill_workers")
# A function that does not load is `start_failed` for its jobs.
LOADING = {"handler_not_found", "handler_not_callable", "load_failed"}
# Functions that choose a code, and where it stands in what they return.
CHOOSERS = {"_how_it_ended": 0, "_judge": 1}
CANCELLED = {"cancelled", "superseded", "function_deleted"}


def _codes(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        found: list[ast.expr] = []
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name == "JobError":
                found = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
            elif name in {"Failure", "_failure"}:
                found = node.args[:1]
        elif isinstance(node, ast.FunctionDef) and node.name in CHOOSERS:
            returned = [inner.value for inner in ast.walk(node) if isinstance(inner, ast.Return)]
            found = [value.elts[CHOOSERS[node.name]] for value in returned if isinstance(value, ast.Tuple)]
        yield from (value.value for value in found if isinstance(value, ast.Constant))


def test_every_code_that_a_job_may_end_with_has_a_hint() -> None:
    trees = [ast.parse(path.read_text()) for folder in SOURCES for path in sorted((ROOT / folder).rglob("*.py"))]
    codes = {code for tree in trees for code in _codes(tree)}
    assert {"permanent_error", "process_killed", "no_capacity", "superseded", "command_failed"} <= codes
    assert codes - LOADING == set(JOB_HINTS)


def test_the_codes_that_a_runner_may_send_are_those_that_it_has() -> None:
    paths = sorted((ROOT / "workers/tidemill_workers/runner").glob("*.py"))
    assert set(CODES) == {code for path in paths for code in _codes(ast.parse(path.read_text()))} - LOADING


@pytest.mark.parametrize("code", [*sorted(JOB_HINTS), "code_of_a_newer_service", ""])
def test_job_show_says_what_to_do_after_every_end(gateway: FakeGateway, tidemill: Tidemill, code: str) -> None:
    job = gateway.submit("echo", b"", "k", "x", {})
    gateway.end(job["id"], "cancelled" if code in CANCELLED else "failed", code=code, message="so it was")
    lines = dict(line.split("\t", 1) for line in tidemill("job", "show", job["id"]).stdout.splitlines())
    assert lines["next"]
    assert not re.search(r"\bID\b", lines["next"]), "a command is there to be copied"


def test_an_end_without_any_error_says_what_to_do_too(gateway: FakeGateway, tidemill: Tidemill) -> None:
    for state in ("failed", "cancelled"):
        job = gateway.submit("echo", b"", state, "x", {})
        gateway.end(job["id"], state)
        assert "\nnext\t" in tidemill("job", "show", job["id"]).stdout


def test_a_job_that_succeeded_or_goes_on_says_nothing_of_the_kind(gateway: FakeGateway, tidemill: Tidemill) -> None:
    job = gateway.submit("echo", b"", "k", "x", {})
    assert "\nnext\t" not in tidemill("job", "show", job["id"]).stdout
    gateway.end(job["id"], "succeeded")
    assert "\nnext\t" not in tidemill("job", "show", job["id"]).stdout


def test_the_hint_that_a_job_brings_comes_first() -> None:
    error = {"code": "timeout", "message": "too long", "hint": "Ask ID."}
    found = job_error(Snapshot({"id": "4f0c", "state": "failed", "error": error}))
    assert found is not None
    assert found.hint == "Ask 4f0c."


def test_the_page_about_failures_names_only_codes_that_there_are() -> None:
    page = (ROOT / "docs/how-to/find-out-why-a-job-failed.md").read_text()
    rows = re.findall(r"^\| (`.+?) \|", page, re.MULTILINE)
    named = {code for row in rows for code in re.findall(r"`(\w+)`", row)}
    assert len(named) > 10
    assert named <= set(JOB_HINTS)
