"""Answers that no store should give, and some do: short, garbled, slow, or lost. A scripted server gives them."""

import contextlib
import io
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from tidemill.errors import StoreUnavailable
from tidemill.settings import StoreSettings
from tidemill.store import open_store, signed, transfer
from tidemill.store.s3 import S3Store

BODY = bytes(range(100))
SAYS = b'ETag: "e"\r\nLast-Modified: Tue, 01 Dec 2026 13:00:00 GMT\r\n'
Reply = bytes | Callable[[socket.socket], None]


class Script:
    """Answers one request after the other; an empty answer closes the connection without a word."""

    def __init__(self, *replies: Reply, keep: bool = True) -> None:
        self._replies = list(replies)
        self._keep = keep
        self.requests: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def store(self, **more: object) -> S3Store:
        fields = {"endpoint": self.endpoint, "access_key": "a", "secret_key": SecretStr("b")}
        return open_store(StoreSettings.model_validate(fields | more))

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection = self._listener.accept()[0]
                threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while self._answer(connection):
                pass

    def _answer(self, connection: socket.socket) -> bool:
        told = b""
        while b"\r\n\r\n" not in told:
            part = connection.recv(65536)
            if not part:
                return False
            told += part
        self.requests.append(told.decode())
        reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        if callable(reply):
            reply(connection)
        else:
            connection.sendall(reply)
        return self._keep and reply != b""


@pytest.fixture
def script() -> Iterator[Callable[..., Script]]:
    made: list[Script] = []

    def make(*replies: Reply, keep: bool = True) -> Script:
        made.append(Script(*replies, keep=keep))
        return made[-1]

    yield make
    for server in made:
        server.close()


def whole(status: str = "200 OK", body: bytes = BODY, more: bytes = SAYS) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n".encode() + more + b"\r\n" + body


def part(first: int, last: int, more: bytes = SAYS) -> bytes:
    ranged = f"Content-Range: bytes {first}-{last}/{len(BODY)}\r\n".encode()
    return whole("206 Partial Content", BODY[first : last + 1], more + ranged)


CUT = whole()[:-50]


def test_a_download_goes_on_where_its_answer_broke(script: Callable[..., Script], tmp_path: Path) -> None:
    server = script(CUT, part(50, 99), keep=False)
    done = server.store().download("bucket", "key", tmp_path / "file", etag="e")
    assert done.size == 100
    assert (tmp_path / "file").read_bytes() == BODY
    assert "Range: bytes=50-" in server.requests[1]


@pytest.mark.parametrize("second", [whole(), part(0, 49), whole("206 Partial Content", BODY[50:])])
def test_another_part_than_the_one_that_was_asked_for_is_never_added(
    script: Callable[..., Script], tmp_path: Path, second: bytes
) -> None:
    server = script(CUT, second, keep=False)
    with pytest.raises(StoreUnavailable):
        server.store().download("bucket", "key", tmp_path / "file", etag="e")
    assert list(tmp_path.iterdir()) == []


def test_an_answer_of_unknown_length_is_read_to_its_end(script: Callable[..., Script], tmp_path: Path) -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n" + SAYS + b"\r\n"
    server = script(chunked + b"64\r\n" + BODY + b"\r\n0\r\nTrailer: x\r\n\r\n")
    assert server.store().download("bucket", "key", tmp_path / "file", etag="e").size == 100
    assert len(server.requests) == 1


@pytest.mark.parametrize("says", [b"", b'ETag: "e"\r\n', SAYS[:11], b'ETag: "e"\r\nLast-Modified: soon\r\n'])
def test_a_garbled_answer_is_trouble_of_the_store(script: Callable[..., Script], tmp_path: Path, says: bytes) -> None:
    store = script(whole(more=says)).store()
    with pytest.raises(StoreUnavailable, match="garbled"):
        store.download("bucket", "key", tmp_path / "file", etag="e")
    assert list(tmp_path.iterdir()) == []


def test_the_end_of_an_upload_is_not_sent_twice(script: Callable[..., Script]) -> None:
    """A kept connection that is closed without an answer: libcurl itself would send the request again."""
    server = script(whole(), b"")
    store = server.store()
    assert store.get("bucket", "key") == BODY
    with pytest.raises(StoreUnavailable):
        store._requests.send("POST", "bucket", "key", query={"uploadId": "u"}, body=b"x")
    assert [request.split(" ")[0] for request in server.requests] == ["GET", "POST"]


def test_an_answer_that_comes_slowly_but_comes_is_waited_for(
    script: Callable[..., Script], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signed, "READ_S", 2.5)

    def slow(connection: socket.socket) -> None:
        for piece in (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n", SAYS, b"\r\n", b"o", b"k"):
            time.sleep(1.2)
            connection.sendall(piece)

    assert script(slow).store().get("bucket", "key") == b"ok"


def test_a_process_that_was_stopped_reads_what_came_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(transfer.time, "monotonic", lambda: now[0])
    watch = transfer._Watch(12.0, io.BytesIO())
    assert watch(0, 5, 0, 0) == 0
    now[0] += 3600.0
    assert watch(0, 5, 0, 0) == 0, "stopped for an hour"
    assert watch(0, 9, 0, 0) == 0
    ends = []
    for _ in range(14):
        now[0] += 1.0
        ends.append(watch(0, 9, 0, 0))
    assert ends == [0] * 12 + [1] * 2


def test_a_signal_ends_the_wait_for_a_silent_store(
    script: Callable[..., Script], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signed, "READ_S", 170.0)

    def silent(connection: socket.socket) -> None:
        connection.recv(1)  # until the other side is gone

    store = script(silent).store()
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        store.head("bucket", "key")
    timer.join()


def test_a_request_that_broke_after_a_long_time_is_made_once_more(
    script: Callable[..., Script], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signed, "RETRY_S", 0.0)
    server = script(b"", whole())
    store = server.store()
    assert store.get("bucket", "key") == BODY
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("endpoint", "address"),
    [
        ("http://h:80", "http://h"),
        ("http://h:9000/", "http://h:9000"),
        ("https://h:443", "https://h"),
        ("https://h:80", "https://h:80"),
    ],
)
def test_a_port_that_clients_leave_out_is_not_signed(endpoint: str, address: str) -> None:
    settings = StoreSettings(endpoint=endpoint, access_key="us:er", secret_key=SecretStr("b"))
    assert signed.SignedRequests(settings)._url("bucket", "key", None) == f"{address}/bucket/key"


def test_a_header_without_a_value_is_left_out(script: Callable[..., Script]) -> None:
    server = script(whole(body=b""))
    for key in ("plain", "us:er"):
        server.store(access_key=key).put("bucket", "key", b"x", metadata={"n": " ", "m": " v "})
    assert len(server.requests) == 2
    for request in server.requests:
        assert "x-amz-meta-n" not in request
        assert "x-amz-meta-m: v\r\n" in request
