"""The store under faults: closed, silent, cutting, refusing; and the memory and files that transfers take."""

import contextlib
import hashlib
import io
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import pytest
from pydantic import SecretStr

from tests.support import S3
from tidemill.errors import InvalidSpec, NotAllowed, PreconditionFailed, ServiceUnavailable, StoreUnavailable
from tidemill.settings import StoreSettings
from tidemill.store import Store, open_store, signed
from tidemill.store.probe import probe_conditional_put
from tidemill.store.s3 import S3Store
from tidemill.testing.memory_store import MemoryStore

MIB = 2**20


def settings_of(s3: S3, **more: object) -> StoreSettings:
    fields: dict[str, object] = {
        "endpoint": s3.endpoint,
        "access_key": s3.access_key,
        "secret_key": SecretStr(s3.secret_key),
        "region": s3.region,
    }
    return StoreSettings.model_validate(fields | more)


@pytest.fixture
def store(s3: S3) -> S3Store:
    return open_store(settings_of(s3))


class Relay:
    """A TCP relay to the store that breaks answers: each connection in turn is cut after `cuts.pop(0)` bytes."""

    def __init__(self, target: str) -> None:
        host, _, port = target.removeprefix("http://").partition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        self.cuts: list[int] = []
        self.cut = 0
        self.before_cut: Callable[[], object] = lambda: None
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._sockets += [near, far]
                threading.Thread(target=self._pump, args=(near, far, False), daemon=True).start()
                threading.Thread(target=self._pump, args=(far, near, True), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        sent = 0
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
                sent += len(data)
                # Only an answer with a body of some size is worth a cut.
                if answers and self.cuts and sent > self.cuts[0]:
                    self.cuts.pop(0)
                    self.before_cut()
                    self.cut += 1
                    break
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for item in self._sockets:
            item.close()


@pytest.fixture
def relay(s3: S3) -> Iterator[Relay]:
    found = Relay(s3.endpoint)
    yield found
    found.close()


@pytest.mark.parametrize("key", ["plain", "odd\tkey"])
def test_a_cut_download_goes_on_where_it_broke(
    s3: S3, store: S3Store, bucket: str, relay: Relay, tmp_path: Path, key: str
) -> None:
    body = hashlib.sha256(b"seed").digest() * (6 * MIB // 32)
    etag = store.put(bucket, key, body)
    relay.cuts = [MIB + 1, 2 * MIB + 1]
    done = open_store(settings_of(s3, endpoint=relay.endpoint)).download(bucket, key, tmp_path / "file", etag=etag)
    assert relay.cut == 2
    assert (done.size, done.sha256) == (len(body), hashlib.sha256(body).hexdigest())
    assert (tmp_path / "file").read_bytes() == body


def test_a_download_whose_every_answer_is_cut_goes_on(
    s3: S3, store: S3Store, bucket: str, relay: Relay, tmp_path: Path
) -> None:
    body = hashlib.sha256(b"seed").digest() * (MIB // 32)
    etag = store.put(bucket, "odd\tkey", body)
    relay.cuts = [MIB // 4] * 3
    done = open_store(settings_of(s3, endpoint=relay.endpoint)).download(
        bucket, "odd\tkey", tmp_path / "file", etag=etag
    )
    assert relay.cut == 3
    assert done.sha256 == hashlib.sha256(body).hexdigest()


@pytest.mark.parametrize("key", ["plain", "odd\tkey"])
def test_an_object_that_changes_during_a_cut_download_is_never_mixed(
    store: S3Store, bucket: str, tmp_path: Path, key: str, s3: S3, relay: Relay
) -> None:
    store.put(bucket, key, b"a" * 6 * MIB)
    relay.cuts = [MIB + 1]
    relay.before_cut = lambda: store.put(bucket, key, b"b" * 6 * MIB)
    with pytest.raises(PreconditionFailed):
        open_store(settings_of(s3, endpoint=relay.endpoint)).download(bucket, key, tmp_path / "file")
    assert relay.cut == 1
    assert not (tmp_path / "file").exists()


def calls(store: Store, tmp_path: Path) -> dict[str, Callable[[], object]]:
    return {
        "head": lambda: store.head("bucket", "key"),
        "get": lambda: store.get("bucket", "key"),
        "get odd": lambda: store.get("bucket", "odd\tkey"),
        "download": lambda: store.download("bucket", "key", tmp_path / "file"),
        "put": lambda: store.put("bucket", "key", b"x"),
        "create": lambda: store.put("bucket", "key", b"x", if_none_match=True),
        "put odd": lambda: store.put("bucket", "odd\tkey", b"x"),
        "put large": lambda: store.put("bucket", "key", io.BytesIO(bytes(9 * MIB))),
        "copy": lambda: store.copy("bucket", "key", "bucket", "copy"),
        "delete": lambda: store.delete("bucket", "key"),
        "pages": lambda: list(store.pages("bucket")),
        "buckets": store.buckets,
        "bucket_exists": lambda: store.bucket_exists("bucket"),
        "ping": store.ping,
    }


@pytest.mark.parametrize("silent", [False, True], ids=["closed", "silent"])
def test_a_dead_store_is_reported_by_every_call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, silent: bool) -> None:
    for name in ("READ_S", "SLOW_READ_S", "RETRY_S"):
        monkeypatch.setattr(signed, name, 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        if not silent:
            listener.close()
        store = open_store(
            StoreSettings(endpoint=f"http://127.0.0.1:{port}", access_key="a", secret_key=SecretStr("b"))
        )
        for name, call in calls(store, tmp_path).items():
            with pytest.raises(StoreUnavailable) as caught:
                call()
            assert caught.value.__cause__ is not None, name
            assert caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_the_waits_for_a_dead_store_stay_well_under_half_a_minute() -> None:
    assert signed.READ_S + signed.RETRY_S < 25


def test_a_proxy_for_the_outside_does_not_get_what_is_for_a_store_on_this_machine(
    s3: S3, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "example.org")
    store = open_store(settings_of(s3))
    store.put(bucket, "key", b"x")
    assert store.get(bucket, "key") == b"x"


def test_credentials_may_have_any_characters() -> None:
    """libcurl takes a name and a password apart at the first colon, when it gets them as one."""
    seen: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection = listener.accept()[0]
            with connection:
                seen.append(connection.recv(65536).decode())
                connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        store = open_store(StoreSettings(endpoint=endpoint, access_key="a:b@c", secret_key=SecretStr("d:e")))
        assert store.head("bucket", "key") is None
        thread.join()
    assert "Credential=a:b@c/" in seen[0]


def test_wrong_credentials_are_not_allowed(s3: S3, bucket: str, tmp_path: Path) -> None:
    wrong = open_store(settings_of(s3, secret_key=SecretStr("wrong")))
    some = {name: call for name, call in calls(wrong, tmp_path).items() if name not in ("copy", "put large")}
    for name, call in some.items():
        with pytest.raises(NotAllowed) as caught:
            call()
        assert "TIDEMILL_STORE__SECRET_KEY" in caught.value.hint, name
        assert "wrong" not in str(caught.value)


def test_the_variables_of_other_tools_change_nothing(s3: S3, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION"):
        monkeypatch.setenv(name, "bogus")
    store = open_store(settings_of(s3))
    store.put(bucket, "key", b"x")
    assert store.get(bucket, "key") == b"x"
    assert [info.key for page in store.pages(bucket) for info in page] == ["key"]


@pytest.mark.parametrize("endpoint", ["localhost:9000", "ftp://host", "http://host/path", "http://", "http://h?a=b"])
def test_an_endpoint_that_is_no_address_is_refused(endpoint: str) -> None:
    with pytest.raises(InvalidSpec):
        open_store(StoreSettings(endpoint=endpoint))


def test_presigned_addresses_carry_the_public_endpoint(s3: S3) -> None:
    store = open_store(settings_of(s3, public_endpoint="https://files.example.org"))
    assert store.presign_get("bucket", "a b/ü").startswith("https://files.example.org/bucket/a%20b/%C3%BC?")
    assert store.presign_put("bucket", "key", 60).startswith("https://files.example.org/bucket/key?")


def test_an_upload_that_fails_leaves_nothing_to_see(store: S3Store, bucket: str) -> None:
    class Breaking(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() >= 20 * MIB:
                raise OSError(5, "the disk broke")
            return super().read(size)

    with pytest.raises(OSError, match="the disk broke"):
        store.put(bucket, "key", Breaking(bytes(30 * MIB)))
    assert [info.key for page in store.pages(bucket) for info in page] == []


class Forgetful(MemoryStore):
    """A store that ignores one of the two conditions, as some do."""

    def __init__(self, ignored: str) -> None:
        super().__init__()
        self._ignored = ignored
        self.ensure_bucket("bucket")

    def put(self, bucket: str, key: str, body: bytes | Path | BinaryIO, **options: object) -> str:
        options.pop(self._ignored, None)
        return super().put(bucket, key, body, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("ignored", "named"), [("if_none_match", "If-None-Match"), ("if_match", "If-Match")])
def test_the_probe_refuses_a_store_that_ignores_a_condition(ignored: str, named: str) -> None:
    store = Forgetful(ignored)
    with pytest.raises(ServiceUnavailable, match=f"ignores {named}") as caught:
        probe_conditional_put(store, "bucket")
    assert caught.value.error_code == "no_conditional_put"
    assert list(store.pages("bucket")) == []


_TRANSFER = """
import json, resource, sys
from pathlib import Path
from pydantic import SecretStr
from tidemill.settings import StoreSettings
from tidemill.store import open_store

endpoint, access_key, secret_key, bucket, folder = sys.argv[1:]
store = open_store(StoreSettings(endpoint=endpoint, access_key=access_key, secret_key=SecretStr(secret_key)))
store.put(bucket, "small", b"x"); store.get(bucket, "small"); list(store.pages(bucket))

def peak_kib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

start = peak_kib()
etag = store.put(bucket, "large", Path(folder, "source"))
up = peak_kib()
done = store.download(bucket, "large", Path(folder, "target"), etag=etag)
print(json.dumps({"up_mib": (up - start) / 1024, "down_mib": (peak_kib() - up) / 1024, "sha256": done.sha256}))
"""


@pytest.mark.slow
def test_large_transfers_take_constant_memory(s3: S3, bucket: str, tmp_path: Path) -> None:
    hasher = hashlib.sha256()
    with (tmp_path / "source").open("wb") as file:
        for number in range(200):
            block = number.to_bytes(4, "big") * (MIB // 4)
            hasher.update(block)
            file.write(block)
    argv = [sys.executable, "-c", _TRANSFER, s3.endpoint, s3.access_key, s3.secret_key, bucket, str(tmp_path)]
    said = json.loads(subprocess.run(argv, check=True, capture_output=True, timeout=150).stdout)
    assert said["sha256"] == hasher.hexdigest()
    assert said["up_mib"] < 64
    assert said["down_mib"] < 64


def test_twin_and_record_need_no_driver() -> None:
    code = (
        "import sys, tidemill.store, tidemill.record.ending; from tidemill.testing import MemoryStore; MemoryStore()\n"
        "print(sorted({'pycurl', 'minio', 'urllib3', 'redis', 'celery'} & set(sys.modules)))"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60).stdout
    assert said.strip() == "[]"
