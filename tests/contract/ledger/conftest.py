"""The ledger's contract tests run on the twin, on Valkey, and on Redis 7 where Debian's `redis-server` is installed."""

import secrets
import shutil
import time
from collections.abc import Iterator

import pytest

from tests.contract.ledger.world import FakeClock, World
from tests.support import wait_until
from tests.support.servers import running
from tidemill.ledger import connect
from tidemill.ledger.api import Ledger
from tidemill.local.ports import Reservation
from tidemill.local.valkey import Valkey
from tidemill.testing import MemoryLedger


class Redis7(Valkey):
    """Debian's Redis with the configuration of our Valkey."""

    def argv(self) -> list[str]:
        return ["redis-server", "valkey.conf"]


@pytest.fixture(scope="session")
def redis7_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if shutil.which("redis-server") is None:
        pytest.skip("needs Debian's redis-server on the PATH")
    directory = tmp_path_factory.mktemp("redis7")
    with Reservation() as ports:
        server = Redis7(directory, ports.take(), password=secrets.token_hex(16), persistent=False)
        server.prepare()
        with running(server.argv(), {}, directory, server.check_ready):
            yield server.url.rsplit("/", 1)[0]


@pytest.fixture(params=["memory", "valkey", "redis7"])
def bare(request: pytest.FixtureRequest) -> Iterator[World]:
    """A ledger without an epoch."""
    kind = request.param
    if kind == "memory":
        clock = FakeClock()
        twin = MemoryLedger(clock)

        def jump(seconds: float) -> None:
            clock.now_s += seconds

        yield World(twin, jump, kind, lambda: twin)
        return
    url = request.getfixturevalue("redis_url" if kind == "valkey" else "redis7_url")
    prefix = f"t{secrets.token_hex(4)}:"
    opened = [connect(url, prefix)]

    def another() -> Ledger:
        opened.append(connect(url, prefix))
        return opened[-1]

    def pass_by(seconds: float) -> None:
        until = time.monotonic() + seconds
        wait_until(lambda: time.monotonic() >= until, seconds + 5)

    yield World(opened[0], pass_by, kind, another)
    for ledger in opened:
        ledger.close()


@pytest.fixture
def world(bare: World) -> World:
    """A ledger in its first epoch, whose rebuild is complete."""
    assert bare.ledger.begin_epoch(1, 1)
    return bare
