"""Reading an output folder that its writer may turn against us."""

import os
import socket
from pathlib import Path

import pytest

from tidemill_workers.agent.outputs import OutputRefused, TooManyOutputs, collect


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "output"
    path.mkdir()
    return path


def _skipped(folder: Path) -> dict[str, str]:
    return {skipped.name: skipped.reason for skipped in collect(folder).skipped}


def test_files_below_folders_come_with_name_size_and_type(folder: Path) -> None:
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "ü.json").write_bytes(b"{}")
    (folder / ".hidden").write_bytes(b"")
    found = collect(folder)
    assert [(f.name, f.size, f.content_type) for f in found.files] == [
        (".hidden", 0, "application/octet-stream"),
        ("a/b/ü.json", 2, "application/json"),
    ]
    with found.files[1].open() as content:
        assert content.read() == b"{}"
    assert found.skipped == []


def test_links_pipes_sockets_and_devices_are_left_out_with_the_reason(folder: Path) -> None:
    (folder / "file-link").symlink_to("/etc/passwd")
    (folder / "folder-link").symlink_to("/etc")
    os.mkfifo(folder / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "socket"))
    assert collect(folder).files == []
    link = "a symbolic link"
    assert _skipped(folder) == {"file-link": link, "folder-link": link, "fifo": "a named pipe", "socket": "a socket"}


def test_a_name_that_is_not_utf8_is_left_out_and_shown_escaped(folder: Path) -> None:
    (folder / os.fsdecode(b"caf\xe9.txt")).write_bytes(b"x")
    assert _skipped(folder) == {"caf\\udce9.txt": "the name is not valid UTF-8"}


def test_a_file_swapped_for_a_link_after_the_listing_is_not_followed(folder: Path) -> None:
    (folder / "x").write_bytes(b"mine")
    (file,) = collect(folder).files
    (folder / "x").unlink()
    (folder / "x").symlink_to("/etc/passwd")
    with pytest.raises(OutputRefused, match="x cannot be opened"):
        file.open()


def test_a_folder_swapped_for_a_link_after_the_listing_is_not_followed(folder: Path, tmp_path: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "x").write_bytes(b"mine")
    (tmp_path / "x").write_bytes(b"secret")
    (file,) = collect(folder).files
    (folder / "sub").rename(folder / "was")
    (folder / "sub").symlink_to(tmp_path)
    with pytest.raises(OutputRefused):
        file.open()


def test_a_file_swapped_for_a_pipe_neither_hangs_nor_opens(folder: Path) -> None:
    (folder / "x").write_bytes(b"mine")
    (file,) = collect(folder).files
    (folder / "x").unlink()
    os.mkfifo(folder / "x")
    with pytest.raises(OutputRefused, match="a named pipe"):
        file.open()


def test_an_output_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "output").symlink_to("/etc")
    with pytest.raises(OutputRefused):
        collect(tmp_path / "output")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a file of another user")
def test_a_hard_link_to_a_file_of_another_user_is_left_out(folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    os.link(secret, folder / "mine")
    (folder / "own").write_bytes(b"x")
    for path in (folder, folder / "own"):
        os.chown(path, 12345, 12345)
    assert [file.name for file in collect(folder).files] == ["own"]
    assert _skipped(folder) == {"mine": "a file of another user"}


def test_more_files_than_allowed_are_an_error_and_too_deep_ones_are_left_out(folder: Path) -> None:
    for number in range(3):
        (folder / str(number)).write_bytes(b"")
    assert len(collect(folder, limit_files=3).files) == 3
    with pytest.raises(TooManyOutputs):
        collect(folder, limit_files=2)
    deep = folder.joinpath(*["d"] * 70)
    deep.mkdir(parents=True)
    (deep / "x").write_bytes(b"")
    assert list(_skipped(folder).values()) == ["more than 60 folders deep"]
