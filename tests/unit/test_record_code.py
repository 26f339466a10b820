"""Code archives come from clients: only plain files below the folder are unpacked."""

import io
import tarfile
from pathlib import Path

import pytest

from tidemill.errors import InvalidSpec
from tidemill.record.code import unpack


def archive_of(path: Path, name: str, *, kind: bytes = tarfile.REGTYPE, link: str = "", body: bytes = b"x") -> Path:
    with tarfile.open(path, "w:gz") as tar:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, link
        member.size = len(body) if kind == tarfile.REGTYPE else 0
        tar.addfile(member, io.BytesIO(body))
    return path


@pytest.mark.parametrize(
    ("name", "kind", "link"),
    [
        ("../evil", tarfile.REGTYPE, ""),
        ("a/../../evil", tarfile.REGTYPE, ""),
        ("link", tarfile.SYMTYPE, "/etc/passwd"),
        ("link", tarfile.SYMTYPE, "inside"),
        ("hard", tarfile.LNKTYPE, "../evil"),
        ("pipe", tarfile.FIFOTYPE, ""),
        ("device", tarfile.CHRTYPE, ""),
        ("/", tarfile.REGTYPE, ""),
        ("n" * 300, tarfile.REGTYPE, ""),
    ],
)
def test_what_could_leave_the_folder_is_refused(tmp_path: Path, name: str, kind: bytes, link: str) -> None:
    into = tmp_path / "into"
    into.mkdir()
    with pytest.raises(InvalidSpec):
        unpack(archive_of(tmp_path / "code", name, kind=kind, link=link), into)
    assert list(into.iterdir()) == []
    assert not (tmp_path / "evil").exists()


def test_an_absolute_name_lands_inside(tmp_path: Path) -> None:
    unpack(archive_of(tmp_path / "code", "/evil/file"), tmp_path / "into")
    assert (tmp_path / "into" / "evil" / "file").read_bytes() == b"x"


def test_an_archive_is_unpacked_where_tarfile_has_no_filters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Python 3.11.0 to 3.11.3; Debian 12 has 3.11.2."""
    plain = tarfile.TarFile.extract

    def extract(self: tarfile.TarFile, member: tarfile.TarInfo, path: str = "") -> None:
        plain(self, member, path)

    monkeypatch.setattr(tarfile.TarFile, "extract", extract)
    monkeypatch.delattr(tarfile, "FilterError", raising=False)
    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    unpack(archive_of(tmp_path / "code", "package/file"), tmp_path / "into")
    assert (tmp_path / "into" / "package" / "file").read_bytes() == b"x"
    with pytest.raises(InvalidSpec):
        unpack(archive_of(tmp_path / "code", "../evil"), tmp_path / "into")


def test_a_file_below_a_file_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "code", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("name"))
        tar.addfile(tarfile.TarInfo("name/below"))
    with pytest.raises(InvalidSpec, match="beside each other"):
        unpack(tmp_path / "code", tmp_path / "into")


def test_a_bomb_is_refused_before_it_is_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="more than"):
        unpack(archive_of(tmp_path / "code", "zeros", body=bytes(2 * 2**20)), tmp_path, max_bytes=2**20)
    assert not (tmp_path / "zeros").exists()
    with pytest.raises(InvalidSpec, match="more than"):
        unpack(archive_of(tmp_path / "code", "file"), tmp_path, max_files=0)


def test_a_setuid_file_loses_the_bit(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "code", "w:gz") as tar:
        member = tarfile.TarInfo("tool")
        member.mode = 0o4777
        tar.addfile(member)
    unpack(tmp_path / "code", tmp_path / "into")
    assert (tmp_path / "into" / "tool").stat().st_mode & 0o7022 == 0


@pytest.mark.parametrize("cut", [0, 10, 100])
def test_a_damaged_archive_is_named_so(tmp_path: Path, cut: int) -> None:
    whole = archive_of(tmp_path / "code", "file", body=bytes(range(256)) * 100).read_bytes()
    (tmp_path / "cut").write_bytes(whole[:cut])
    with pytest.raises(InvalidSpec, match="damaged"):
        unpack(tmp_path / "cut", tmp_path / "into")
