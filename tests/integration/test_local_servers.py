"""The embedded servers, as the fixtures of every other test start them."""

import contextlib
import http.client
import http.server
import io
import json
import threading
from pathlib import Path
from typing import Any

import minio
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support import S3, run_seaweed, run_valkey, wait_until
from tidemill.local.ports import Reservation
from tidemill.local.seaweed import Seaweed, Webhook


def client(s3: S3) -> minio.Minio:
    return minio.Minio(
        s3.endpoint.removeprefix("http://"), s3.access_key, s3.secret_key, secure=False, region=s3.region
    )


def test_a_database_is_empty_and_writable(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as connection:
        assert connection.dbsize() == 0
        connection.set("a", 1)
        assert connection.get("a") == b"1"


def test_valkey_refuses_a_stranger_and_never_evicts(redis_url: str) -> None:
    address, port = redis_url.rsplit("@", 1)[1].split("/")[0].split(":")
    with (
        redis.Redis(address, int(port), retry=Retry(NoBackoff(), 0)) as stranger,
        pytest.raises(redis.AuthenticationError),
    ):
        stranger.ping()
    with redis.Redis.from_url(redis_url) as connection:
        assert connection.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert int(connection.config_get("maxmemory")["maxmemory"]) > 0


def test_a_bucket_takes_an_object_of_several_volumes_worth(s3: S3, bucket: str) -> None:
    store = client(s3)
    store.put_object(bucket, "a b/ü+%2F.bin", io.BytesIO(b"x" * (20 * 2**20)), 20 * 2**20)
    answer = store.get_object(bucket, "a b/ü+%2F.bin")
    try:
        assert len(answer.read()) == 20 * 2**20
    finally:
        answer.close()
        answer.release_conn()


def test_a_put_into_a_bucket_that_nobody_made_is_refused(s3: S3) -> None:
    with pytest.raises(minio.error.S3Error) as refused:
        client(s3).put_object("nobody-made-this", "a", io.BytesIO(b"x"), 1)
    assert refused.value.code == "NoSuchBucket"


def test_the_store_refuses_a_stranger(s3: S3, bucket: str) -> None:
    stranger = S3(s3.endpoint, s3.access_key, "not the secret", s3.region)
    with pytest.raises(minio.error.S3Error):
        list(client(stranger).list_objects(bucket))
    connection = http.client.HTTPConnection(s3.endpoint.removeprefix("http://"), timeout=5)
    connection.request("GET", f"/{bucket}/")
    assert connection.getresponse().status == 403
    connection.close()


class Receiver:
    """A webhook receiver on one port that can go away and come back; `keys` are the paths that it was told."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.bodies: list[dict[str, Any]] = []
        self.tokens: set[str | None] = set()
        self._server: http.server.ThreadingHTTPServer | None = None

    def open(self) -> None:
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.bodies.append({"path": self.path, **json.loads(body)})
                receiver.tokens.add(self.headers["Authorization"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def count(self, key: str) -> int:
        return sum(body["key"].endswith(key) for body in self.bodies)

    def heard_of(self, key: str) -> bool:
        return self.count(key) > 0


def test_the_webhook_tells_of_objects_and_goes_on_after_its_receiver_was_away(tmp_path: Path) -> None:
    with Reservation() as ports:
        receiver = Receiver(ports.take())
        receiver.open()
        hook = Webhook(f"http://127.0.0.1:{receiver.port}/hooks/s3/local", "the token")
        with run_seaweed(tmp_path / "with a space", webhook=hook) as server:
            store = client(S3(server.endpoint, server.access_key, server.secret_key, server.region))
            store.make_bucket("inbox")
            store.put_object("inbox", "before.txt", io.BytesIO(b"1"), 1)
            wait_until(lambda: receiver.heard_of("/buckets/inbox/before.txt"))
            receiver.close()
            store.put_object("inbox", "meanwhile.txt", io.BytesIO(b"22"), 2)
            receiver.open()
            store.put_object("inbox", "after.txt", io.BytesIO(b"333"), 3)
            wait_until(lambda: receiver.heard_of("/buckets/inbox/after.txt"))
            # Counted before the PUT: its event may arrive before its answer.
            told = receiver.count("before.txt")
            store.put_object("inbox", "before.txt", io.BytesIO(b"4444"), 4)
            wait_until(lambda: receiver.count("before.txt") > told)
        receiver.close()
    assert receiver.tokens == {"Bearer the token"}
    assert {body["path"] for body in receiver.bodies} == {"/hooks/s3/local"}


def test_the_webhook_tells_of_the_quiet_buckets_canaries_only_and_of_every_other_bucket(tmp_path: Path) -> None:
    with Reservation() as ports:
        receiver = Receiver(ports.take())
        receiver.open()
        hook = Webhook(f"http://127.0.0.1:{receiver.port}/hooks/s3/local", "the token", quiet_bucket="tidemill")
        with run_seaweed(tmp_path / "weed", webhook=hook) as server:
            store = client(S3(server.endpoint, server.access_key, server.secret_key, server.region))
            others = ["tide", "tidemill-too", "tidemill.x", "tidemilk", "inbox", "0-9", "tidemil", "tidemills"]
            for bucket in ["tidemill", *others]:
                store.make_bucket(bucket)
            store.put_object("tidemill", "commits/a", io.BytesIO(b"1"), 1)
            for name in ["tidemill/canary/g/1", *(f"{bucket}/told" for bucket in others)]:
                bucket, _, key = name.partition("/")
                store.put_object(bucket, key, io.BytesIO(b"1"), 1)
                wait_until(lambda: receiver.heard_of(f"/buckets/{name}"))  # noqa: B023 - waited for at once
        receiver.close()
    assert not receiver.heard_of("commits/a")


@pytest.mark.parametrize(
    ("part", "method", "path"),
    [
        ("filer", "GET", "/buckets/{bucket}/secret"),
        ("filer", "DELETE", "/buckets/{bucket}/secret"),
        ("master", "GET", "/dir/assign"),
        ("master", "GET", "/col/delete?collection={bucket}"),
        ("volume", "GET", "/{fid}"),
    ],
)
def test_no_inner_http_port_leads_around_the_credentials(
    seaweed: Seaweed, s3: S3, bucket: str, part: str, method: str, path: str
) -> None:
    client(s3).put_object(bucket, "secret", io.BytesIO(b"the content" * 1000), 11_000)
    port = getattr(seaweed.ports, part)
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
        connection.request(method, path.format(bucket=bucket, fid="1,0100000000"))
        answer = connection.getresponse()
        body = answer.read()
    assert answer.status in (401, 404), (answer.status, body)
    assert b"the content" not in body
    assert client(s3).stat_object(bucket, "secret").size == 11_000


def test_valkey_starts_with_an_aof_that_a_full_disk_left_damaged_in_its_middle(tmp_path: Path) -> None:
    with run_valkey(tmp_path, persistent=True) as server:
        client = redis.Redis.from_url(server.url)
        for number in range(50):
            client.set(f"key-{number}", "x" * 100)
        client.close()
    (aof,) = (tmp_path / "appendonlydir").glob("*.incr.aof")
    body = aof.read_bytes()
    at = body.index(b"key-30")
    aof.write_bytes(body[:at] + body[at + 40 :])
    server.before_start()
    with run_valkey(tmp_path, persistent=True) as server:
        client = redis.Redis.from_url(server.url)
        assert client.get("key-29") is not None
        assert client.get("key-49") is None
        client.close()
