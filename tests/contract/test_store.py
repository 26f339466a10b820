"""What every store keeps: one suite for the twin in memory and for the real server."""

import hashlib
import io
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tidemill.errors import InvalidSpec, NotFound, PreconditionFailed
from tidemill.store import Store, open_store
from tidemill.store.multipart import Upload
from tidemill.store.s3 import S3Store
from tidemill.testing.memory_store import MemoryStore

PART = 8 * 2**20


@pytest.fixture(params=["memory", "seaweedfs", "minio"])
def store_kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def store(store_kind: str, bucket: str, request: pytest.FixtureRequest) -> Store:
    """The store under test, with an empty bucket."""
    if store_kind == "memory":
        memory = MemoryStore()
        memory.ensure_bucket(bucket)
        return memory
    return open_store(request.getfixturevalue("server").settings)


def keys_of(store: Store, bucket: str, prefix: str = "", start_after: str | None = None) -> list[str]:
    return [info.key for page in store.pages(bucket, prefix, start_after) for info in page]


def test_what_was_put_can_be_read_and_described(store: Store, bucket: str) -> None:
    etag = store.put(bucket, "a/b.txt", b"hello", content_type="text/x-test", metadata={"tidemill-job": "ab12"})
    assert store.get(bucket, "a/b.txt") == b"hello"
    info = store.head(bucket, "a/b.txt")
    assert info is not None
    assert (info.bucket, info.key, info.size, info.etag) == (bucket, "a/b.txt", 5, etag)
    assert (info.content_type, dict(info.metadata)) == ("text/x-test", {"tidemill-job": "ab12"})
    assert '"' not in etag
    assert info.last_modified > 1_700_000_000


def test_a_listing_agrees_with_head(store: Store, bucket: str) -> None:
    store.put(bucket, "one", b"1")
    [[listed]] = list(store.pages(bucket))
    head = store.head(bucket, "one")
    assert head is not None
    assert (listed.key, listed.size, listed.etag, listed.last_modified) == (
        head.key,
        head.size,
        head.etag,
        head.last_modified,
    )


def test_an_upload_that_was_left_behind_is_found_and_dropped(store: Store, bucket: str) -> None:
    assert store.unfinished(bucket) == []
    wanted = ["payloads/a b+\u00fc&.bin", "payloads/b"]
    for key in wanted:
        if isinstance(store, MemoryStore):
            store.begin_upload(bucket, key)
        else:
            assert isinstance(store, S3Store)
            Upload(store._requests, bucket, key, {})._part(1, b"x")
    found = store.unfinished(bucket)
    assert sorted(upload.key for upload in found) == wanted
    assert all(upload.begun_at > 1_700_000_000 for upload in found)
    [first] = [upload for upload in found if upload.key == wanted[0]]
    store.drop_upload(bucket, first)
    store.drop_upload(bucket, first)
    assert [upload.key for upload in store.unfinished(bucket)] == wanted[1:]
    assert keys_of(store, bucket) == []
    store.drop_upload(bucket, store.unfinished(bucket)[0])
    with pytest.raises(NotFound):
        store.unfinished("no-such-bucket")


@pytest.mark.parametrize("key", ["plain", "folder/with\ttab"])
def test_what_is_missing_is_said_so(store: Store, bucket: str, key: str, tmp_path: Path) -> None:
    assert store.head(bucket, key) is None
    assert store.head("no-such-bucket", key) is None
    for lost in (bucket, "no-such-bucket"):
        with pytest.raises(NotFound):
            store.get(lost, key)
        with pytest.raises(NotFound):
            store.download(lost, key, tmp_path / "file")
        with pytest.raises(NotFound):
            store.copy(lost, key, bucket, "copy")
    with pytest.raises(NotFound):
        store.put("no-such-bucket", key, b"x")
    with pytest.raises(NotFound):
        list(store.pages("no-such-bucket"))
    store.delete(bucket, key)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("key", ["plain", "odd\nkey"])
def test_conditions_decide_a_put(store: Store, bucket: str, key: str) -> None:
    first = store.put(bucket, key, b"first", if_none_match=True)
    with pytest.raises(PreconditionFailed):
        store.put(bucket, key, b"other", if_none_match=True)
    with pytest.raises(PreconditionFailed):
        store.put(bucket, key, b"other", if_match="0" * 32)
    assert store.get(bucket, key) == b"first"
    second = store.put(bucket, key, b"second", if_match=first)
    assert store.get(bucket, key) == b"second"
    assert second != first
    with pytest.raises(PreconditionFailed):
        store.put(bucket, key, b"third", if_match=first)
    with pytest.raises((PreconditionFailed, NotFound)):
        store.put(bucket, "not there", b"x", if_match=first)


def test_conditions_decide_a_put_in_parts(store: Store, bucket: str) -> None:
    body = b"0123456789abcdef" * (PART // 16) + b"end"
    first = store.put(bucket, "big", io.BytesIO(body), if_none_match=True, metadata={"a": "b"}, content_type="x/y")
    info = store.head(bucket, "big")
    assert info is not None
    assert (info.size, info.etag, info.content_type, dict(info.metadata)) == (len(body), first, "x/y", {"a": "b"})
    with pytest.raises(PreconditionFailed):
        store.put(bucket, "big", io.BytesIO(body), if_none_match=True)
    with pytest.raises(PreconditionFailed):
        store.put(bucket, "big", io.BytesIO(body), if_match="0" * 32)
    other = store.put(bucket, "big", io.BytesIO(body[::-1]), if_match=first)
    assert other != first
    assert store.get(bucket, "big") == body[::-1]


@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1])
def test_a_file_goes_up_and_comes_back(store: Store, bucket: str, tmp_path: Path, size: int) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(range(256)) * (size // 256) + b"x" * (size % 256))
    etag = store.put(bucket, "file", source)
    done = store.download(bucket, "file", tmp_path / "target", etag=etag)
    content = (tmp_path / "target").read_bytes()
    assert content == source.read_bytes()
    assert (done.size, done.sha256) == (size, hashlib.sha256(content).hexdigest())


@pytest.mark.parametrize("key", ["plain", "odd\tkey"])
def test_a_download_is_pinned_to_its_etag(store: Store, bucket: str, tmp_path: Path, key: str) -> None:
    old = store.put(bucket, key, b"old")
    store.put(bucket, key, b"new")
    with pytest.raises(PreconditionFailed):
        store.download(bucket, key, tmp_path / "file", etag=old)
    assert not (tmp_path / "file").exists()
    store.download(bucket, key, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_download_never_writes_over_a_file_or_through_a_link(store: Store, bucket: str, tmp_path: Path) -> None:
    store.put(bucket, "key", b"content")
    (tmp_path / "there").write_bytes(b"mine")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("there", "link"):
        with pytest.raises(FileExistsError):
            store.download(bucket, "key", tmp_path / name)
    assert (tmp_path / "there").read_bytes() == b"mine"
    assert not (tmp_path / "elsewhere").exists()
    with pytest.raises(FileNotFoundError):
        store.download(bucket, "key", tmp_path / "no folder" / "file")


@pytest.mark.parametrize("key", ["plain", "odd\tkey"])
def test_get_stops_after_the_bytes_asked_for(store: Store, bucket: str, key: str) -> None:
    store.put(bucket, key, b"0123456789")
    assert [store.get(bucket, key, max_bytes=n) for n in (0, 4, 10, 99)] == [b"", b"0123", b"0123456789", b"0123456789"]


def test_a_copy_has_the_content_and_its_own_description(store: Store, bucket: str) -> None:
    store.put(bucket, "from +%2F/ü\t", b"content", content_type="a/b", metadata={"old": "1"})
    etag = store.copy(
        bucket, "from +%2F/ü\t", bucket, "to/é?#&", content_type="c/d", metadata={"tidemill-generation": "2"}
    )
    info = store.head(bucket, "to/é?#&")
    assert info is not None
    assert (info.etag, info.content_type, dict(info.metadata)) == (etag, "c/d", {"tidemill-generation": "2"})
    assert store.get(bucket, "to/é?#&") == b"content"


def test_a_listing_gives_every_object_once_in_pages(store: Store, bucket: str) -> None:
    wanted = sorted(f"many/{number:04}" for number in range(1003))
    run_in_threads(8, lambda index: [store.put(bucket, key, b"") for key in wanted[index::8]])
    pages = list(store.pages(bucket, "many/"))
    assert [len(page) for page in pages] == [1000, 3]
    assert [info.key for page in pages for info in page] == wanted
    assert keys_of(store, bucket, "many/", start_after="many/0999") == wanted[1000:]


def test_a_prefix_is_text_not_a_folder(store: Store, bucket: str) -> None:
    for key in ("in/2026-01", "in/2026-02", "in/2025-12", "inbox"):
        store.put(bucket, key, b"x")
    assert sorted(keys_of(store, bucket, "in/2026-")) == ["in/2026-01", "in/2026-02"]
    assert sorted(keys_of(store, bucket, "in")) == ["in/2025-12", "in/2026-01", "in/2026-02", "inbox"]
    assert keys_of(store, bucket, "nothing") == []
    assert list(store.pages(bucket, "nothing")) == []


@pytest.mark.parametrize("key", ["", ".", "a/../b", "a/.", "x" * 1025, "a\0b", "\ud800"])
def test_a_key_that_nobody_can_keep_is_refused(store: Store, bucket: str, key: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec):
        store.put(bucket, key, b"x")
    with pytest.raises(InvalidSpec):
        store.head(bucket, key)
    with pytest.raises(InvalidSpec):
        store.download(bucket, key, tmp_path / "file")


def test_buckets_are_made_once(store: Store, bucket: str) -> None:
    assert store.bucket_exists(bucket)
    assert not store.bucket_exists("no-such-bucket")
    store.ensure_bucket(bucket)
    assert bucket in store.buckets()
    other = f"{bucket}-more"
    store.ensure_bucket(other)
    store.ensure_bucket(other)
    assert store.bucket_exists(other)
    assert store.ping() >= 0


def test_the_probe_accepts_a_store_that_keeps_conditions(store: Store, bucket: str) -> None:
    store.probe_conditional_put(bucket)
    assert keys_of(store, bucket) == []


def test_one_of_many_creators_wins(store: Store, bucket: str) -> None:
    won: list[int] = []
    run_in_threads(2, lambda index: create(store, bucket, "once", str(index).encode(), index, won))
    assert [str(index).encode() for index in won] == [store.get(bucket, "once")]


def test_one_of_two_creators_of_a_large_object_wins(store: Store, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit record may be larger than a part. In parts, SeaweedFS lets both creators win when they end together."""
    complete, ends = Upload.complete, threading.Barrier(2)

    def together(self: Upload, etags: list[str], conditions: Mapping[str, str]) -> str:
        ends.wait(30)
        return complete(self, etags, conditions)

    monkeypatch.setattr(Upload, "complete", together)
    bodies = [bytes([65 + index]) * (PART + 7) for index in range(2)]
    for number in range(4):
        key, won = f"once-{number}", list[int]()
        run_in_threads(2, lambda index, key=key, won=won: create(store, bucket, key, bodies[index], index, won))
        assert [bodies[index] for index in won] == [store.get(bucket, key)], won


def create(store: Store, bucket: str, key: str, body: bytes, index: int, won: list[int]) -> None:
    try:
        store.put(bucket, key, body, if_none_match=True)
    except PreconditionFailed:
        return
    won.append(index)


def run_in_threads(count: int, work: Callable[[int], object]) -> None:
    failures: list[BaseException] = []

    def guarded(index: int) -> None:
        try:
            work(index)
        except BaseException as error:  # noqa: BLE001 - shown by the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("name", ["", "a", "a\tb", "a\nb", "a/b", "../up", "-begins", "x" * 64, "ümlaut", "a b"])
def test_a_name_that_no_bucket_has_is_refused_by_every_call(store: Store, name: str, tmp_path: Path) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.head(name, "key"),
        lambda: store.get(name, "key"),
        lambda: store.put(name, "key", b"x"),
        lambda: store.put(name, "odd\tkey", b"x"),
        lambda: store.delete(name, "key"),
        lambda: store.download(name, "key", tmp_path / "file"),
        lambda: list(store.pages(name)),
        lambda: store.ensure_bucket(name),
    ]
    for call in calls:
        with pytest.raises(InvalidSpec):
            call()
