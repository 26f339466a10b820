"""Make the sample inputs of the examples: invoices, receipts, pictures like photographs, and files of other kinds.

    examples/samples/make.py OUT_DIR [--count N] [--seed S]

It needs OpenCV and NumPy, so it runs with the Python of the environment of `examples/ocr`. Files lie in OUT_DIR/ocr and
OUT_DIR/filetype, as they are dropped into the input bucket. The same count and seed give the same bytes. On standard
output stands one JSON object per sample: path, function, kind, and what a right result contains.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import cv2
import numpy as np
import othertypes
import papers
import photos
from names import ODD_STEMS

_DRAW = {"invoice": papers.invoice, "receipt": papers.receipt, "photo": photos.photo}
_SUFFIXES = {
    "invoice": (".png", ".jpg", ".tif"),
    "receipt": (".jpg", ".webp", ".png"),
    "photo": (".jpg", ".JPG", ".jpeg", ".bmp"),
}


@dataclass(frozen=True)
class Sample:
    """One input.

    `path` is relative to the folder of all samples and begins with the function's name, as the key in the bucket does.
    `words` stand on a picture (a right OCR result contains each, spaces and case aside); `label` is the file type that
    `filetype` has to find.
    """

    path: str
    function: str
    kind: str
    words: tuple[str, ...] = ()
    label: str = ""


def make_samples(out: Path, count: int = 44, seed: int = 1) -> list[Sample]:
    """Write `count` pictures, every fourth with an odd name, and a quarter as many files of other kinds.

    There are at most 12 of the latter.
    """
    (out / "ocr").mkdir(parents=True, exist_ok=True)
    (out / "filetype").mkdir(parents=True, exist_ok=True)
    samples = [_picture(out, number, seed) for number in range(count)]
    for name, content, label in othertypes.files(Random(f"{seed}/files"))[: -(-count // 4)]:
        (out / "filetype" / name).write_bytes(content)
        samples.append(Sample(f"filetype/{name}", "filetype", "file", label=label))
    return samples


def _picture(out: Path, number: int, seed: int) -> Sample:
    kind = ("invoice", "receipt", "photo")[number % 3]
    rng = Random(f"{seed}/{number}")
    pixels, words = _DRAW[kind](rng, np.random.default_rng([seed, number]))
    suffix = _SUFFIXES[kind][(number // 3) % len(_SUFFIXES[kind])]
    name = f"{kind}-{number + 1:03d}{suffix}"
    # every fourth, and not every third: so that each kind gets some of them
    odd, turn = divmod(number, 4)
    if turn == 1:
        again = odd // len(ODD_STEMS)
        name = ODD_STEMS[odd % len(ODD_STEMS)] + (f" {again + 1}" if again else "") + suffix
    # encoded in memory: OpenCV opens files by a name in the local encoding
    options = {".jpg": [cv2.IMWRITE_JPEG_QUALITY, 88], ".webp": [cv2.IMWRITE_WEBP_QUALITY, 88]}.get(suffix.lower(), [])
    done, encoded = cv2.imencode(suffix.lower(), pixels, options)
    if not done:
        raise RuntimeError(f"OpenCV could not encode {name!r}")
    (out / "ocr" / name).write_bytes(encoded.tobytes())
    return Sample(f"ocr/{name}", "ocr", kind, words)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Make sample inputs for the examples.")
    parser.add_argument("out", type=Path, metavar="OUT_DIR")
    parser.add_argument("--count", type=int, default=44, help="pictures; a quarter as many other files come on top")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    for sample in make_samples(chosen.out, chosen.count, chosen.seed):
        print(json.dumps(asdict(sample)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
