"""When the embedded store has to start again."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from tidemill.local.ports import Reservation
from tidemill.local.seaweed import Ports, Seaweed

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
