"""What unit tests share: the command line with the small gateway that it asks, and a planner with all that it needs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.cli import Tidemill
from tests.support.fake_gateway import TOKEN, FakeGateway, run_fake_gateway
from tests.support.house import House
from tidemill.cli.group import root


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGateway]:
    with run_fake_gateway() as running:
        monkeypatch.setenv("TIDEMILL_URL", running.url)
        monkeypatch.setenv("TIDEMILL_TOKEN", TOKEN)
        yield running


@pytest.fixture
def tidemill() -> Tidemill:
    return lambda *args: CliRunner().invoke(root, [str(arg) for arg in args], prog_name="tidemill")


@pytest.fixture
def cat(tmp_path: Path) -> Path:
    path = tmp_path / "cat.txt"
    path.write_bytes(b"meow")
    return path


@pytest.fixture
def house() -> House:
    return House()
