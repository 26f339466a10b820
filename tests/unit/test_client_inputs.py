"""What a caller may give as input, and where results may be saved."""

import io
from pathlib import Path

import pytest

from tidemill import File
from tidemill.client.output import Saved, safe_name
from tidemill.client.payloads import prepare
from tidemill.client.wire import Body
from tidemill.errors import InvalidSpec


def test_a_path_a_text_and_a_file_stay_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "cat.jpg"
    path.write_bytes(b"meow")
    for given in (path, str(path), File(path)):
        body = prepare(given)
        assert body == Body("cat.jpg", path, "image/jpeg")
        assert isinstance(body, Body)
        assert body.size == 4


def test_a_file_of_a_function_keeps_its_name(tmp_path: Path) -> None:
    path = tmp_path / "input-0"
    path.write_bytes(b"meow")
    assert prepare(File(path, name="cat.txt")) == Body("cat.txt", path, "text/plain")


def test_bytes_and_open_files_are_sent_from_memory(tmp_path: Path) -> None:
    assert prepare(b"x") == Body("payload", b"x")
    assert prepare(io.BytesIO(b"y")) == Body("payload", b"y")
    path = tmp_path / "dog.txt"
    path.write_bytes(b"wuff")
    with path.open("rb") as file:
        assert prepare(file) == Body("dog.txt", b"wuff")


def test_an_object_is_named_by_bucket_and_key() -> None:
    named = {"bucket": "inbox", "key": "a/b", "version_id": "7"}
    assert prepare(named) == named


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"bucket": "inbox"}, "bucket and key"),
        ({"bucket": "b", "key": "k", "data": 1}, "bucket and key"),
        ("/no/such/file", "does not exist"),
        ("/", "is a folder"),
        (io.StringIO("text"), "gives text"),
        (7, "int cannot be"),
        (None, "NoneType cannot be"),
    ],
)
def test_anything_else_is_refused_with_a_hint(given: object, reason: str) -> None:
    with pytest.raises(InvalidSpec, match=reason) as caught:
        prepare(given)  # type: ignore[arg-type]
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("plain.txt", "plain.txt"),
        ("../../etc/passwd", "_.._etc_passwd"),
        ("/abs", "_abs"),
        ("..", "output"),
        ("", "output"),
        (".bashrc", "bashrc"),
        ("a\\b\x00c\nd", "a_b_c_d"),
        ("\udc80x", "_x"),
        ("Ünïcödé 👩.txt", "Ünïcödé 👩.txt"),
    ],
)
def test_names_are_made_safe(name: str, safe: str) -> None:
    assert safe_name(name) == safe


def test_long_names_are_cut_between_characters_and_keep_their_suffix(tmp_path: Path) -> None:
    name = safe_name("ü" * 400 + ".jpeg")
    assert name.endswith("ü.jpeg")
    assert len(name.encode()) <= 200
    (tmp_path / name).touch()


def test_a_saved_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "out.bin"
    target.write_bytes(b"old")
    with pytest.raises(RuntimeError, match="cut"):
        _save_half(target)
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def _save_half(target: Path) -> None:
    with Saved(target, "x") as saved, saved.open() as sink:
        sink.write(b"half")
        raise RuntimeError("cut")


def test_a_second_try_of_a_download_starts_anew(tmp_path: Path) -> None:
    with Saved(tmp_path, "../out.bin") as saved:
        with saved.open() as sink:
            sink.write(b"half")
        with saved.open() as sink:
            sink.write(b"whole")
    assert [path.name for path in tmp_path.iterdir()] == ["_out.bin"]
    assert (tmp_path / "_out.bin").read_bytes() == b"whole"
