"""The example functions in their own environments, on samples that the generator draws.

The environments are built from the committed locks, which needs the package index or uv's cache.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tidemill.models.files import load_function
from tidemill_workers.environments import Environment, EnvironmentBuilder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
# What a runner does, in a few lines: load once, then one call per file.
CALL = """
import importlib, json, sys
root, folder, handler, *paths = sys.argv[1:]
sys.path[:0] = [folder, root]
from tidemill import Context, File, PermanentError
module, name = handler.split(":")
function = getattr(importlib.import_module(module), name)()
function.load(Context())
for path in paths:
    try:
        print(json.dumps({"result": function(File(path), Context())}))
    except PermanentError as error:
        print(json.dumps({"permanent": str(error)}))
"""


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> EnvironmentBuilder:
    return EnvironmentBuilder(tmp_path_factory.mktemp("environments"))


@pytest.fixture(scope="module")
def ocr(builder: EnvironmentBuilder) -> Environment:
    return builder.ensure("ocr", EXAMPLES / "ocr" / "requirements.txt", no_deps=True)


@pytest.fixture(scope="module")
def filetype(builder: EnvironmentBuilder) -> Environment:
    return builder.ensure("filetype", EXAMPLES / "filetype" / "requirements.txt", no_deps=True)


@pytest.fixture(scope="module")
def many(ocr: Environment, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The folder of the default set, and what the generator says about each of its files."""
    out = tmp_path_factory.mktemp("samples")
    return out, make(ocr, out, 44)


def make(ocr: Environment, out: Path, count: int) -> list[dict[str, Any]]:
    script = EXAMPLES / "samples" / "make.py"
    done = subprocess.run(
        [ocr.python, script, out, "--count", str(count)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def call(environment: Environment, folder: str, paths: list[Path], threads: str = "2") -> list[dict[str, Any]]:
    code = EXAMPLES / folder
    handler = str(load_function(code).spec.handler)
    done = subprocess.run(
        [environment.python, "-I", "-B", "-c", CALL, ROOT, code, handler, *paths],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": threads},
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def squeezed(text: str) -> str:
    return "".join(text.split()).casefold()


def test_ocr_reads_what_stands_on_an_invoice_a_receipt_and_a_photo(ocr: Environment, tmp_path: Path) -> None:
    samples = [sample for sample in make(ocr, tmp_path, 3) if sample["function"] == "ocr"]
    assert [sample["kind"] for sample in samples] == ["invoice", "receipt", "photo"]
    answers = call(ocr, "ocr", [tmp_path / sample["path"] for sample in samples])
    for sample, answer in zip(samples, answers, strict=True):
        result = answer["result"]
        for word in sample["words"]:
            assert squeezed(word) in squeezed(result["text"]), sample["path"]
        assert result["pages"] == 1
        assert result["seconds"] > 0
        assert result["text"] == "\n".join(line["text"] for line in result["lines"])
        for line in result["lines"]:
            assert 0.5 <= line["score"] <= 1
            assert len(line["box"]) == 4


@pytest.mark.parametrize("threads", ["1", "many"])
def test_ocr_takes_any_thread_count_from_its_environment(ocr: Environment, tmp_path: Path, threads: str) -> None:
    code = "import sys; sys.path[:0] = sys.argv[1:]; from ocr import Ocr, thread_count; from tidemill import Context; "
    code += "o = Ocr(); o.load(Context()); options = o.engine.text_rec.session.session.get_session_options(); "
    code += "import cv2, os; print(options.intra_op_num_threads, cv2.getNumThreads(), len(os.sched_getaffinity(0)))"
    done = subprocess.run(
        [ocr.python, "-I", "-B", "-c", code, EXAMPLES / "ocr", ROOT],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={"OMP_NUM_THREADS": threads},
    )
    model, opencv, usable = (int(part) for part in done.stdout.split())
    assert model == opencv == (1 if threads == "1" else usable)


def test_ocr_refuses_what_is_no_picture_for_good_and_says_why(ocr: Environment, tmp_path: Path) -> None:
    make(ocr, tmp_path, 1)
    text, cut, bomb, blank = (tmp_path / name for name in ("note.png", "cut.png", "bomb.bmp", "blank.bmp"))
    text.write_text("not a picture")
    cut.write_bytes((tmp_path / "ocr" / "invoice-001.png").read_bytes()[:5000])
    bomb.write_bytes(bmp(100_000, 100_000, b""))
    blank.write_bytes(bmp(64, 64, b"\xff" * (64 * 64 * 3)))
    answers = call(ocr, "ocr", [text, cut, bomb, blank])
    assert "note.png is not a picture that can be read. Give a PNG" in answers[0]["permanent"]
    assert "cut.png begins like a picture, but is broken or cut off" in answers[1]["permanent"]
    assert "bomb.bmp is too large" in answers[2]["permanent"]
    assert answers[3]["result"]["lines"] == []
    assert answers[3]["result"]["text"] == ""


def bmp(width: int, height: int, pixels: bytes) -> bytes:
    """A BMP file of 24 bits per pixel; the width has to be a multiple of four."""
    size = 54 + len(pixels)
    head = b"BM" + size.to_bytes(4, "little") + bytes(4) + (54).to_bytes(4, "little")
    info = (40).to_bytes(4, "little") + width.to_bytes(4, "little") + height.to_bytes(4, "little")
    return head + info + (1).to_bytes(2, "little") + (24).to_bytes(2, "little") + bytes(24) + pixels


def test_filetype_tells_the_kind_of_each_sample_by_its_content(
    filetype: Environment, many: tuple[Path, list[dict[str, Any]]]
) -> None:
    out, samples = many[0], [sample for sample in many[1] if sample["function"] == "filetype"]
    answers = call(filetype, "filetype", [out / sample["path"] for sample in samples])
    found = {sample["path"]: answer["result"]["label"] for sample, answer in zip(samples, answers, strict=True)}
    assert found == {sample["path"]: sample["label"] for sample in samples}
    assert all({"label", "mime", "description", "score", "group"} <= answer["result"].keys() for answer in answers)
    assert answers[0]["result"]["mime"] == "application/pdf"


def test_samples_are_many_of_each_kind_and_trigger_the_functions(many: tuple[Path, list[dict[str, Any]]]) -> None:
    out, samples = many
    kinds = [sample["kind"] for sample in samples]
    assert [kinds.count(kind) for kind in ("invoice", "receipt", "photo", "file")] == [15, 15, 14, 11]
    assert len({sample["path"] for sample in samples}) == len(samples)
    for sample in samples:
        assert (out / sample["path"]).stat().st_size > 0
        assert load_function(EXAMPLES / sample["function"]).spec.trigger_for("inbox", sample["path"]) is not None


def test_samples_of_the_same_seed_have_the_same_bytes(ocr: Environment, tmp_path: Path) -> None:
    make(ocr, tmp_path / "one", 4)
    make(ocr, tmp_path / "two", 4)
    for path in sorted((tmp_path / "one").rglob("*.*")):
        assert path.read_bytes() == (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes()
