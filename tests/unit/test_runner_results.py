"""What a handler returns, as files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidemill.handler import File
from tidemill_workers.runner import results
from tidemill_workers.runner.failures import Failure

Keep = Callable[[Any], dict[str, bytes]]


@pytest.fixture
def output(tmp_path: Path) -> Path:
    path = tmp_path / "output"
    path.mkdir()
    return path


@pytest.fixture
def keep(output: Path, tmp_path: Path) -> Keep:
    (tmp_path / "own").mkdir()

    def keep(result: Any) -> dict[str, bytes]:
        results.keep(result, str(output), [str(tmp_path / "own")], File)
        return {str(p.relative_to(output)): p.read_bytes() for p in output.rglob("*") if p.is_file()}

    return keep


@pytest.mark.parametrize("value", [{"ä": [1, 2.5, None, True]}, ["x"], "text 🦆", 3, 0.5, False, {}])
def test_plain_values_become_result_json(keep: Keep, value: Any) -> None:
    files = keep(value)
    assert list(files) == ["result.json"]
    assert json.loads(files["result.json"]) == value
    assert b"\\u" not in files["result.json"]


def test_none_is_null_unless_the_handler_wrote_files(keep: Keep, output: Path) -> None:
    assert keep(None) == {"result.json": b"null"}
    (output / "result.json").unlink()
    (output / "sub").mkdir()
    (output / "sub" / "page.txt").write_text("x")
    assert keep(None) == {"sub/page.txt": b"x"}


def test_a_value_and_files_written_by_hand_are_published_together(keep: Keep, output: Path) -> None:
    (output / "page.txt").write_text("x")
    assert keep({"n": 1}) == {"page.txt": b"x", "result.json": b'{"n": 1}'}


@pytest.mark.parametrize("value", [b"\0\1", bytearray(b"\0\1"), memoryview(b"\0\1")])
def test_bytes_become_result_bin(keep: Keep, value: Any) -> None:
    assert keep(value) == {"result.bin": b"\0\1"}


def test_a_path_and_a_file_keep_their_names(keep: Keep, output: Path, tmp_path: Path) -> None:
    made = tmp_path / "own" / "made.png"
    made.write_bytes(b"png")
    assert keep(made) == {"made.png": b"png"}
    assert keep(File(made, name="other.png")) == {"made.png": b"png", "other.png": b"png"}
    assert keep(output / "made.png") == {"made.png": b"png", "other.png": b"png"}


def test_a_dict_with_files_is_several_outputs_with_suffixes_where_they_lack(keep: Keep, tmp_path: Path) -> None:
    made = tmp_path / "own" / "made.png"
    made.write_bytes(b"png")
    named = {
        "thumb": made,
        "raw": b"r",
        "raw.dat": b"d",
        "meta": {"n": 1},
        "note.txt": "hé",
        "note": "x",
        "a/b.csv": "1",
    }
    assert keep(named) == {
        "thumb.png": b"png",
        "raw.bin": b"r",
        "raw.dat": b"d",
        "meta.json": b'{"n": 1}',
        "note.txt": "hé".encode(),
        "note.json": b'"x"',
        "a/b.csv": b"1",
    }


def test_a_file_of_the_output_folder_returned_under_a_name_is_published_once(keep: Keep, output: Path) -> None:
    (output / "tmp1.png").write_bytes(b"png")
    assert keep({"page.png": output / "tmp1.png", "again.png": output / "tmp1.png"}) == {
        "page.png": b"png",
        "again.png": b"png",
    }


@pytest.mark.parametrize(
    ("value", "code", "said"),
    [
        ({"a": [1, {2, 3}]}, "result_not_serialisable", "the result['a'][1] is set"),
        ({"a": float("nan")}, "result_not_serialisable", "the result['a'] is nan"),
        (["x\ud800"], "result_not_serialisable", "the result[0] is a str with half a surrogate pair"),
        ({(1, 2): 3}, "result_not_serialisable", "a key of the result is tuple"),
        (Failure("x", "y"), "result_not_serialisable", "the result is tidemill_workers.runner.failures.Failure"),
        ([Path("/x")], "result_not_serialisable", "the result[0] is pathlib.PosixPath"),
        ({"../x.y": b""}, "output_name_invalid", "'../x.y'"),
        ({"/x.y": b""}, "output_name_invalid", "'/x.y'"),
        ({3: b""}, "output_name_invalid", "not int"),
        (Path("/etc/passwd"), "output_not_allowed", "/etc/passwd is not a file of this job"),
    ],
)
def test_what_cannot_be_an_output_says_why(keep: Keep, value: Any, code: str, said: str) -> None:
    with pytest.raises(Failure) as caught:
        keep(value)
    assert caught.value.code == code
    assert said in str(caught.value)
    assert caught.value.kind == "permanent"


def test_a_result_that_contains_itself_is_refused(keep: Keep) -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(Failure, match="contains itself"):
        keep(loop)


def test_missing_files_folders_and_links_out_of_the_folder_are_refused(
    keep: Keep, output: Path, tmp_path: Path
) -> None:
    (output / "link").symlink_to("/etc/passwd")
    for value, code in (
        (tmp_path / "own" / "gone", "output_missing"),
        (output / "link", "output_not_allowed"),
    ):
        with pytest.raises(Failure) as caught:
            keep(value)
        assert caught.value.code == code
    (tmp_path / "own" / "sub").mkdir()
    with pytest.raises(Failure, match="is a folder"):
        keep(tmp_path / "own" / "sub")


def test_a_name_that_is_taken_already_is_refused_instead_of_overwritten(keep: Keep, output: Path) -> None:
    (output / "result.json").write_text("by hand")
    with pytest.raises(Failure) as caught:
        keep({"n": 1})
    assert caught.value.code == "output_exists"
    assert (output / "result.json").read_text() == "by hand"
