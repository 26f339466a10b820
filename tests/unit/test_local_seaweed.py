"""When the embedded store has to start again."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import SecretStr

from tests.support import run_seaweed
from tidemill.local.ports import Reservation
from tidemill.local.seaweed import Ports, Seaweed
from tidemill.settings import StoreSettings
from tidemill.store import Store, open_store

INDEX = (
    "E0101 filer.go:301 insert entry /buckets/in/a: persisting /buckets/in/a : "
    "write data/filerldb2/00/000001.log: no space left on device\n"
)


def test_its_index_needs_a_new_start_after_a_full_disk_and_only_when_there_is_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Reservation() as ports:
        store = Seaweed(tmp_path, Ports.take(ports), "key", "secret")
    assert store.broken("I0101 nothing of note\n") is None
    assert store.broken("W0101 volume 3: no space left on device\n") is None, "a volume recovers by itself"
    reason = store.broken(INDEX)
    assert reason is not None
    assert "its disk was full" in reason
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2**20))
    assert store.broken(INDEX) is None


def _open(store: Seaweed) -> Store:
    return open_store(
        StoreSettings(endpoint=store.endpoint, access_key=store.access_key, secret_key=SecretStr(store.secret_key))
    )


def test_an_index_that_was_cut_off_is_made_anew_and_every_object_is_there(tmp_path: Path) -> None:
    with run_seaweed(tmp_path) as store:
        s3 = _open(store)
        s3.ensure_bucket("inbox")
        for number in range(60):
            s3.put("inbox", f"{number}", b"x" * number)
        s3.delete("inbox", "7")
    (*_, index) = sorted((tmp_path / "data").glob("inbox_*.idx"))
    with index.open("r+b") as file:
        file.truncate(index.stat().st_size // 2 // 17 * 17 + 5)
    with Reservation() as ports:
        torn = Seaweed(tmp_path, Ports.take(ports), "key", "secret")
    assert torn.broken("") is not None
    torn.before_start()
    assert torn.broken("") is None
    with run_seaweed(tmp_path) as store:
        s3 = _open(store)
        assert {number for number in range(60) if s3.head("inbox", f"{number}") is not None} == {*range(60)} - {7}
        assert all(s3.get("inbox", f"{number}") == b"x" * number for number in range(60) if number != 7)
        s3.put("inbox", "more", b"more")
        assert s3.get("inbox", "more") == b"more"
