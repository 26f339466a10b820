"""Any key that the store shows in a listing works: odd keys on the real server, with the minio SDK as the referee."""

import hashlib
import io
import unicodedata
import urllib.request
from pathlib import Path

import pytest
from minio import Minio
from minio.commonconfig import ENABLED, CopySource
from minio.versioningconfig import VersioningConfig

from tests.support import S3
from tidemill.store import open_store
from tidemill.store.s3 import S3Store

ODD_KEYS = {
    "plus": "a+b.txt",
    "encoded slash": "a%2Fb",
    "encoded percent": "a%25b",
    "bare percent": "100%",
    "broken percent": "a%zz%1",
    "NFC": unicodedata.normalize("NFC", "é/ü.txt"),
    "NFD": unicodedata.normalize("NFD", "é/ü.txt"),
    "emoji": "\N{CAT FACE}/\N{FAMILY}.png",
    "CJK": "日本語/文書.pdf",
    "right to left": "\u202eabc\u200b\ufeff",
    "quotes": "q\"uo'te`s",
    "newline": "new\nline",
    "carriage return": "cr\r\nx",
    "tab": "dir/tab\tx",
    "control": "\x01\x0b\x1f\x7f",
    "C1 control": "\u0085nel\u2028x",
    "query": "a?b=c&d#e;f",
    "markup": "<lt>&gt;&amp;]]>",
    "brackets": "{a}[b]|c^d",
    "stars": "*?$!()@:,=",
    "leading space": " lead",
    "trailing space": "trail ",
    "spaces in segments": "dir / x / y",
    "trailing dots": "trail...",
    "dots": "...",
    "leading dots": "x/..y/.hidden",
    "tilde": "~/a~b",
    "60 levels": "n/" * 59 + "x",
    "255 bytes in a segment": "z" * 255,
    "900 bytes": "/".join(["k" * 199] * 4) + "/" + "e" * 100,
    "folder marker": "folder/",
    "private use": "\ue000\ufffd\U0010fffd",
}


@pytest.fixture(params=["seaweedfs", "minio"])
def store_kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def store(server: S3) -> S3Store:
    return open_store(server.settings)


@pytest.fixture
def referee(server: S3) -> Minio:
    host = server.endpoint.removeprefix("http://")
    return Minio(host, server.access_key, server.secret_key, secure=False, region=server.region)


def body_of(referee: Minio, bucket: str, key: str) -> bytes:
    answer = referee.get_object(bucket, key)
    try:
        return answer.read()
    finally:
        answer.close()
        answer.release_conn()


def shown_to(referee: Minio, bucket: str) -> list[str]:
    return sorted(str(item.object_name) for item in referee.list_objects(bucket, recursive=True))


@pytest.mark.parametrize("key", ODD_KEYS.values(), ids=ODD_KEYS.keys())
def test_an_odd_key_of_somebody_else_works_in_every_call(
    store: S3Store, referee: Minio, bucket: str, key: str, tmp_path: Path
) -> None:
    body = b"" if key.endswith("/") else b"body of " + key.encode()
    referee.put_object(bucket, key, io.BytesIO(body), len(body))
    [[listed]] = list(store.pages(bucket))
    assert [listed.key] == shown_to(referee, bucket) == [key]
    head = store.head(bucket, listed.key)
    assert head is not None
    assert (head.size, head.etag, head.last_modified) == (listed.size, listed.etag, listed.last_modified)
    assert store.get(bucket, key) == body
    done = store.download(bucket, key, tmp_path / "file", etag=listed.etag)
    assert (done.size, done.sha256) == (len(body), hashlib.sha256(body).hexdigest())
    with urllib.request.urlopen(store.presign_get(bucket, key)) as answer:
        assert answer.read() == body
    if body:  # SeaweedFS copies no folder markers
        store.copy(bucket, key, bucket, "copy")
        assert body_of(referee, bucket, "copy") == body
    # The folder of the download holds the one file that was named, whatever the key says.
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    "key", [key for key in ODD_KEYS.values() if not key.endswith("/")], ids=[i for i in ODD_KEYS if "marker" not in i]
)
def test_an_odd_key_of_ours_is_the_same_for_everybody(store: S3Store, referee: Minio, bucket: str, key: str) -> None:
    etag = store.put(bucket, key, b"ours", metadata={"tidemill-job": "ab"}, content_type="a/b", if_none_match=True)
    assert shown_to(referee, bucket) == [key]
    assert body_of(referee, bucket, key) == b"ours"
    stat = referee.stat_object(bucket, key)
    assert (stat.etag, stat.content_type) == (etag, "a/b")
    assert stat.metadata is not None
    assert stat.metadata["x-amz-meta-tidemill-job"] == "ab"
    store.put(bucket, key, b"again", if_match=etag)
    referee.copy_object(bucket, "source", CopySource(bucket, key))
    store.copy(bucket, "source", bucket, "copied/" + key)
    assert body_of(referee, bucket, "copied/" + key) == b"again"
    request = urllib.request.Request(store.presign_put(bucket, key), data=b"presigned", method="PUT")
    urllib.request.urlopen(request).close()
    assert store.get(bucket, key) == b"presigned"
    store.delete(bucket, key)
    assert key not in shown_to(referee, bucket)


def test_one_odd_key_does_not_hide_the_others(store: S3Store, referee: Minio, bucket: str) -> None:
    for key in ODD_KEYS.values():
        body = b"" if key.endswith("/") else b"x"
        referee.put_object(bucket, key, io.BytesIO(body), len(body))
    ours = sorted(info.key for page in store.pages(bucket) for info in page)
    assert ours == shown_to(referee, bucket) == sorted(ODD_KEYS.values())


@pytest.mark.parametrize("store_kind", ["seaweedfs"])  # MinIO refuses `//` and keeps `\\`
@pytest.mark.parametrize(("key", "shown"), [("back\\slash", "back/slash"), ("a//b", "a/b"), ("/lead", "lead")])
def test_a_key_that_this_store_rewrites_works_as_it_shows_it(
    store: S3Store, referee: Minio, bucket: str, key: str, shown: str
) -> None:
    store.put(bucket, key, b"x")
    assert [info.key for page in store.pages(bucket) for info in page] == shown_to(referee, bucket) == [shown]
    assert store.get(bucket, shown) == b"x"


@pytest.mark.parametrize("key", ["plain", "odd\tkey"])
def test_a_version_pins_a_download(store: S3Store, referee: Minio, bucket: str, tmp_path: Path, key: str) -> None:
    referee.set_bucket_versioning(bucket, VersioningConfig(ENABLED))
    store.put(bucket, key, b"first")
    first = store.head(bucket, key)
    assert first is not None
    assert first.version_id
    store.put(bucket, key, b"second!")
    store.download(bucket, key, tmp_path / "file", etag=first.etag, version_id=first.version_id)
    assert (tmp_path / "file").read_bytes() == b"first"
    assert store.head(bucket, key, first.version_id) == first
    now = store.head(bucket, key)
    assert now is not None
    assert now.size == 7
    assert now.version_id != first.version_id


def test_a_large_object_with_an_odd_key_goes_both_ways(
    store: S3Store, referee: Minio, bucket: str, tmp_path: Path
) -> None:
    key = "large\t+%2F/ü"
    (tmp_path / "source").write_bytes(bytes(range(256)) * (9 * 2**20 // 256))
    store.put(bucket, key, tmp_path / "source", if_none_match=True)
    assert body_of(referee, bucket, key) == (tmp_path / "source").read_bytes()
    store.download(bucket, key, tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == (tmp_path / "source").read_bytes()
