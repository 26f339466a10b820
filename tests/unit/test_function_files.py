"""Function and pool files are refused with file, line, what is wrong, and what to write instead."""

from __future__ import annotations

import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from tidemill.errors import InvalidSpec
from tidemill.models import FunctionSpec, Trigger, revision_of
from tidemill.models.archive import pack_bytes
from tidemill.models.files import load_function, load_pools

GOOD = """\
name: caption
handler: captions:Caption
trigger:
  - {bucket: inbox, prefix: caption/, suffix: [.jpg, .png], max_size: 50Mi}
output: {bucket: outbox, prefix: caption/, key: "{key}/{name}", on_conflict: fail}
resources: {gpu: {memory: 4Gi, sharing: shared, kinds: [T4, L4]}, cpu: 1, memory: 2Gi}
placement: {objective: balanced, deadline: 2m, max_cost_usd: 0.01, allow: {clouds: [azure], regions: ["ch-*"]}}
scaling: {min: 0, max: 4, idle_timeout: auto}
batch: {max_size: 16, max_wait: 20ms}
environment: {requirements: requirements.txt}
limits: {timeout: 10m, attempts: 3}
env: {LANG: C.UTF-8, THREADS: 2}
params: {top_k: {type: integer, default: 3, minimum: 1}}
size_features: [input_bytes, params.top_k]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "captions.py").write_text("class Caption: ...\n")
    (tmp_path / "requirements.txt").write_text("")
    return tmp_path


def write(folder: Path, text: str) -> Path:
    (folder / "function.yaml").write_text(text)
    return folder


def test_the_file_of_the_contract_is_read_with_its_units(folder: Path) -> None:
    spec = load_function(write(folder, GOOD)).spec
    assert spec.trigger[0].max_size == 50 * 2**20
    assert spec.limits.timeout == 600
    assert spec.batch.max_wait == pytest.approx(0.02)
    assert spec.resources.gpu is not None
    assert spec.resources.gpu.memory == 4 * 2**30
    assert spec.env["THREADS"] == "2"
    assert FunctionSpec.model_validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize(
    ("old", "new", "line", "said", "hint"),
    [
        ("handler:", "handlr:", 2, "handlr: unknown key", "handler"),
        ("prefix: caption/, suffix", "prefx: caption/, suffix", 4, "unknown key", "prefix"),
        ("memory: 4Gi", "memory: lots", 6, "'lots' is not a size", "512Mi"),
        ("timeout: 10m", "timeout: soon", 11, "'soon' is not a duration", "90s"),
        ("name: caption", "name: Caption!", 1, "does not have the form", "lower-case"),
        ("attempts: 3", "attempts: 0", 11, "greater than or equal to 1", "correct"),
        (
            "bucket: outbox, prefix: caption/",
            "bucket: inbox, prefix: caption/out",
            5,
            "under its own trigger",
            "another",
        ),
        ("captions:Caption", "captions", 2, "not module:object", "captions:Caption"),
        ("captions:Caption", "missing:Caption", 2, "no missing.py", "module of this folder"),
        ("requirements.txt}", "nothing.txt}", 10, "no file nothing.txt", "write it"),
        ("requirements.txt}", "../x.txt}", 10, "must lie in the function's folder", "correct"),
        ("objective: balanced", "objective: quickest", 7, "latency", "quickest"),
        ('key: "{key}/{name}"', 'key: "{name}"', 5, "one key", "correct"),
        ("limits:", "name: again\nlimits:", 11, "stands here twice", "line 1"),
        ("cpu: 1,", "cpu: [,", 6, "not valid YAML", "indentation"),
    ],
)
def test_a_fault_names_file_line_and_remedy(folder: Path, old: str, new: str, line: int, said: str, hint: str) -> None:
    assert old in GOOD
    with pytest.raises(InvalidSpec) as caught:
        load_function(write(folder, GOOD.replace(old, new, 1)))
    assert f"function.yaml:{line}: " in str(caught.value)
    assert said in str(caught.value)
    assert hint.lower() in f"{caught.value} {caught.value.hint}".lower()


def test_a_handler_or_a_command_is_needed_but_not_both(folder: Path) -> None:
    with pytest.raises(InvalidSpec, match="either handler"):
        load_function(write(folder, "name: a\n"))
    with pytest.raises(InvalidSpec, match="either handler"):
        load_function(write(folder, "name: a\nhandler: captions:Caption\ncommand: [sh, x.sh]\n"))


@pytest.mark.parametrize("body", [b"\xff\xfe\x00", b"- a\n- b\n", b"", b"a: &a [*a]\n", b"[" * 3000])
def test_junk_instead_of_a_function_file_is_an_error_of_ours(folder: Path, body: bytes) -> None:
    (folder / "function.yaml").write_bytes(body)
    with pytest.raises(InvalidSpec, match=r"function\.yaml"):
        load_function(folder)


def test_a_folder_without_a_function_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec) as caught:
        load_function(tmp_path)
    assert "function init" in caught.value.hint


def test_a_pools_file_names_the_doubled_pool(tmp_path: Path) -> None:
    path = tmp_path / "pools.yaml"
    path.write_text("pools:\n  - {name: a}\n  - {name: b, price: {usd_per_hour: 1}}\n  - {name: a}\n")
    with pytest.raises(InvalidSpec, match=r"pools.yaml:4: .*twice"):
        load_pools(path)


def test_an_unknown_key_of_a_pool_names_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "pools.yaml"
    path.write_text("pools:\n  - name: a\n    price: {usd_per_hr: 1}\n")
    with pytest.raises(InvalidSpec) as caught:
        load_pools(path)
    assert "pools.yaml:3:" in str(caught.value)
    assert "usd_per_hour" in caught.value.hint


@pytest.mark.parametrize(
    ("first", "second", "overlap"),
    [
        ({"prefix": "a/"}, {"prefix": "a/b/"}, True),
        ({"prefix": "a/"}, {"prefix": "b/"}, False),
        ({"prefix": "a/", "suffix": [".png"]}, {"prefix": "a/", "suffix": [".jpg"]}, False),
        ({"prefix": "", "suffix": [".gz"]}, {"prefix": "a/", "suffix": [".TAR.GZ"]}, True),
        ({"prefix": ""}, {"prefix": "x", "suffix": [".a"]}, True),
    ],
)
def test_triggers_overlap_when_some_key_matches_both(first: dict, second: dict, overlap: bool) -> None:
    one = Trigger.model_validate({"bucket": "inbox", **first})
    two = Trigger.model_validate({"bucket": "inbox", **second})
    assert one.overlaps(two) is overlap
    assert two.overlaps(one) is overlap
    assert not one.overlaps(two.model_copy(update={"bucket": "other"}))


def test_suffixes_match_without_case() -> None:
    assert Trigger(bucket="inbox", prefix="a/", suffix=(".PNG",)).matches("inbox", "a/x.png")
    assert not Trigger(bucket="inbox", prefix="a/", suffix=(".png",)).matches("inbox", "a/x.png.txt")


def test_the_same_folder_packs_to_the_same_bytes_whatever_its_times(folder: Path, tmp_path: Path) -> None:
    write(folder, GOOD)
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.pyc").write_bytes(b"x")
    first = pack_bytes(folder)
    (folder / "captions.py").touch()
    assert pack_bytes(folder) == first
    with tarfile.open(fileobj=BytesIO(first)) as archive:
        names = archive.getnames()
    assert names == ["captions.py", "function.yaml", "requirements.txt"]


def test_a_link_in_the_folder_is_refused(folder: Path) -> None:
    write(folder, GOOD)
    (folder / "secrets.txt").symlink_to("/etc/passwd")
    with pytest.raises(InvalidSpec, match=r"secrets\.txt is not a regular file"):
        pack_bytes(folder)


def test_an_unchanged_deploy_is_the_same_revision(folder: Path) -> None:
    spec = load_function(write(folder, GOOD)).spec
    assert revision_of(spec, "00") == revision_of(FunctionSpec.model_validate_json(spec.model_dump_json()), "00")
    assert revision_of(spec, "00") != revision_of(spec, "01")
