"""Log files that stay small while their writer goes on."""

import os
from pathlib import Path

from tidemill.local.logs import LogFile, prune


def test_a_long_log_moves_away_and_its_writer_goes_on_at_the_new_end(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "logs" / "a.log", cap_bytes=100)
    with log.open() as writer:
        writer.write(b"x" * 80)
        log.rotate()
        assert log.size() == 80
        writer.write(b"y" * 50)
        log.rotate()
        assert log.size() == 0
        writer.write(b"after")
    assert log.path.read_bytes() == b"after"
    older = tmp_path / "logs" / "a.log.1"
    assert older.read_bytes() == b"x" * 50 + b"y" * 50
    assert (log.path.stat().st_mode | older.stat().st_mode) & 0o077 == 0


def test_a_full_disk_costs_old_text_and_not_the_room_of_the_new(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "a.log", cap_bytes=10)
    log.path.write_bytes(b"x" * 50)
    log.path.with_name("a.log.1").symlink_to("/dev/full")
    log.rotate()
    assert log.size() == 0
    assert [path.name for path in tmp_path.iterdir()] == ["a.log"]


def test_the_tail_begins_at_the_mark_and_survives_a_rotation(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "a.log", cap_bytes=10)
    assert log.tail() == ""
    log.path.write_bytes(b"first run\n")
    mark = log.size()
    with log.open() as writer:
        writer.write(b"second \xff\n")
        assert log.tail(since=mark) == "second \ufffd\n"
        log.rotate()
        writer.write(b"new\n")
    assert log.tail(since=mark) == "new\n"
    assert log.tail(most_bytes=3) == "ew\n"


def test_pruning_keeps_the_newest(tmp_path: Path) -> None:
    for age in range(5):
        path = tmp_path / f"{age}.log"
        path.write_text("")
        (tmp_path / f"{age}.log.1").write_text("")
        os.utime(path, (1000 - age, 1000 - age))
    prune(tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.log", "0.log.1", "1.log", "1.log.1"]
