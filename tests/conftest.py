"""Fixtures of every test: real servers, one of each per run, and a clean environment.

`valkey_url`, `s3` (SeaweedFS) and `minio` are the servers; `redis_url` is an empty database and `bucket` an empty
bucket for one test. A module that is to run on several stores overrides `store_kind` by a fixture with params, and uses
`server` in place of `s3`.
"""

import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path

# With --import-mode=importlib pytest puts nothing on the path, and `tests.support` lies beside the packages.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pytest

# Before anything of ours is imported: the developer's own settings must not reach a test.
for _name in [name for name in os.environ if name.startswith(("TIDEMILL_", "AWS_"))]:
    del os.environ[_name]

from tests.support import S3, MinioServer, run_minio, run_seaweed, run_valkey  # noqa: E402
from tests.support import wait_until as _wait_until  # noqa: E402
from tidemill.local.seaweed import Seaweed  # noqa: E402

_DATABASES = 16
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _own_home(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test reads or writes the profile and the state of the user who runs it."""
    home = tmp_path_factory.getbasetemp() / "home"
    home.mkdir(exist_ok=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))


@pytest.fixture(scope="session")
def valkey_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the run's Valkey, `redis://:<password>@127.0.0.1:<port>` (no database number, no AOF)."""
    with run_valkey(tmp_path_factory.mktemp("valkey")) as server:
        yield server.url.rsplit("/", 1)[0]


@pytest.fixture
def redis_url(valkey_url: str) -> str:
    """The address of an empty database (the sixteen are used in turn, so a late writer of the last test is far off)."""
    import redis

    url = f"{valkey_url}/{next(_numbers) % _DATABASES}"
    with redis.Redis.from_url(url) as connection:
        connection.flushdb()
    return url


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """The run's SeaweedFS with its inner ports; most tests want `s3`."""
    with run_seaweed(tmp_path_factory.mktemp("seaweed")) as server:
        yield server


@pytest.fixture(scope="session")
def s3(seaweed: Seaweed) -> S3:
    """The run's SeaweedFS: `endpoint`, `access_key`, `secret_key`, `region`."""
    return S3(seaweed.endpoint, seaweed.access_key, seaweed.secret_key, seaweed.region)


@pytest.fixture(scope="session")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    """The run's MinIO, without a webhook. Skips where it is not built (`tests/support/tools.py`)."""
    with run_minio(tmp_path_factory.mktemp("minio")) as server:
        yield server


@pytest.fixture
def store_kind() -> str:
    """Which store `server` and `bucket` mean: seaweedfs, minio, or memory (a bucket is a mere name then)."""
    return "seaweedfs"


@pytest.fixture
def server(store_kind: str, request: pytest.FixtureRequest) -> S3:
    """The store of this test."""
    found: S3 = request.getfixturevalue("s3") if store_kind == "seaweedfs" else request.getfixturevalue("minio").s3
    return found


@pytest.fixture
def bucket(store_kind: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of an empty bucket; it is deleted with its content after the test, which frees SeaweedFS' volumes."""
    name = f"test-{os.getpid()}-{next(_numbers)}"
    if store_kind == "memory":
        yield name
    elif store_kind == "minio":
        store: MinioServer = request.getfixturevalue("minio")
        store.create_bucket(name)
        yield name
    else:
        seaweed: Seaweed = request.getfixturevalue("seaweed")
        seaweed.create_bucket(name)
        yield name
        seaweed.request("DELETE", f"/{name}", accept=(200, 204, 404, 409))


@pytest.fixture(name="wait_until")
def _wait_until_fixture() -> object:
    """`wait_until(condition, deadline_s)`; also `from tests.support import wait_until`."""
    return _wait_until
