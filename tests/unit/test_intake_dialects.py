"""Bucket events of every dialect, as real stores sent them and as nobody should."""

import json
from pathlib import Path

import pytest

from tidemill_gateway.intake.dialects import read

_RECEIVED = Path(__file__).resolve().parents[3] / "shared" / "data" / "events"
# Every store got the same calls: these keys were written, `plain.txt` twice and `copied.txt` by a copy.
_KEYS = [
    "plain.txt",
    "a b.txt",
    "a+b.txt",
    "a%2Fb.txt",
    "x/y/z.txt",
    "日本 ä.txt",
    "q?x=1&y;#.txt",
    "emoji😀.bin",
    "mp/big.bin",
    "copied.txt",
    "empty.txt",
    "plain.txt",
]


def _received(name: str) -> list[bytes]:
    path = _RECEIVED / f"{name}.jsonl"
    if not path.exists():
        pytest.skip(f"the recorded bodies {path} are not here")
    return [json.dumps(json.loads(line)["body"]).encode() for line in path.read_text("utf-8").splitlines()]


@pytest.mark.parametrize("store", ["minio", "seaweedfs", "versitygw"])
def test_recorded_bodies_give_each_written_key_first_and_nothing_else(store: str) -> None:
    readings = [read(body) for body in _received(store)]

    assert [reading.junk for reading in readings if reading.junk] == []
    keys = [event.keys[0] for reading in readings for event in reading.events]
    assert [key for key in keys if key != "folder/"] == _KEYS


def test_an_aws_key_is_decoded_first_and_kept_raw_as_a_second_reading() -> None:
    [event] = read(_s3("a+b%2Bc.txt")).events

    assert event.keys == ("a b+c.txt", "a+b%2Bc.txt")


def test_a_ceph_key_is_raw_first() -> None:
    [event] = read(_s3("a+b.txt", source="ceph:s3")).events

    assert event.keys == ("a+b.txt", "a b.txt")


def test_a_key_without_special_characters_has_one_reading() -> None:
    [event] = read(_s3("plain.txt", size=7, eTag='"abc"')).events

    assert (event.keys, event.size, event.etag) == (("plain.txt",), 7, "abc")


@pytest.mark.parametrize(
    "name", ["s3:ObjectCreated:PutTagging", "ObjectRemoved:Delete", "s3:ObjectCreated:PutRetention", "Whatever"]
)
def test_what_is_no_new_content_gives_nothing_and_is_no_junk(name: str) -> None:
    reading = read(_s3("a.txt", name=name))

    assert (reading.events, reading.junk) == ([], None)


def test_one_bad_record_does_not_spoil_the_others() -> None:
    good = json.loads(_s3("good.txt"))["Records"][0]
    reading = read(json.dumps({"Records": [good, 5, {"eventName": "ObjectCreated:Put"}]}).encode())

    assert [event.keys for event in reading.events] == [("good.txt",)]
    assert reading.junk


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"5",
        b'"x"',
        b"\xff\xfe",
        b'{"a": 1}',
        b'{"Records": {}}',
        b'{"Records": [{"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": 5}, "object": {"key": "k"}}}]}',
        b'{"Records": [{"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "b"}, "object": {}}}]}',
        b'{"event_type": "create", "key": 7, "message": {}}',
        b'{"event_type": "create", "key": "/buckets/b/k", "message": []}',
        b'{"event_type": "create", "key": "/buckets/b/k", "message": {"new_entry": []}}',
        b'{"Records": [{"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "\\ud800"}}}]}',
        b"[" * 100_000,
        b'{"a": NaN}',
        b'{"Records": ' + b"9" * 10_000 + b"}",
    ],
)
def test_junk_is_named_with_a_reason(body: bytes) -> None:
    reading = read(body)

    assert reading.events == []
    assert reading.junk


def test_an_empty_body_is_a_probe() -> None:
    assert (read(b" \n").events, read(b"").junk) == ([], None)


@pytest.mark.parametrize(
    "path",
    ["/buckets/b", "/buckets/b/", "/buckets/.system/x/y", "/buckets/b/.uploads/x/0001.part", "/etc/x", "/topics/a/b"],
)
def test_seaweedfs_own_files_are_left_out(path: str) -> None:
    reading = read(_weed("create", path, {"name": "x"}))

    assert (reading.events, reading.junk) == ([], None)


def test_a_seaweedfs_update_counts_when_the_content_changed_and_not_when_a_tag_did() -> None:
    old = {"name": "k", "chunks": [{"e_tag": "a", "size": 1, "modified_ts_ns": 1}], "extended": {}}
    tagged = {**old, "extended": {"X-Amz-Tagging-a": "Yg=="}}
    written = {**old, "chunks": [{"e_tag": "a", "size": 1, "modified_ts_ns": 2}]}

    assert read(_weed("update", "/buckets/b/k", tagged, old)).events == []
    assert [event.keys for event in read(_weed("update", "/buckets/b/k", written, old)).events] == [("k",)]


def test_a_seaweedfs_rename_names_the_new_path() -> None:
    body = _weed("rename", "/buckets/b/old", {"name": "new"}, {"name": "old"}, parent="/buckets/b/in")

    assert [event.keys for event in read(body).events] == [("in/new",)]


def _s3(key: str, *, name: str = "ObjectCreated:Put", source: str = "aws:s3", **facts: object) -> bytes:
    s3 = {"bucket": {"name": "inbox", "arn": "arn:aws:s3:::inbox"}, "object": {"key": key, **facts}}
    return json.dumps({"Records": [{"eventName": name, "eventSource": source, "s3": s3}]}).encode()


def _weed(kind: str, path: str, new: object, old: object = None, parent: str | None = None) -> bytes:
    message = {"new_entry": new, "old_entry": old, "new_parent_path": parent or path.rsplit("/", 1)[0]}
    return json.dumps({"event_type": kind, "key": path, "message": message}).encode()
