"""Read the text of pictures with RapidOCR on ONNX Runtime.

The three models (find text, turn it upright, read it) are loaded once per runner. They run on a GPU when the installed
ONNX Runtime has a CUDA provider that works, else on the CPU with as many threads as `OMP_NUM_THREADS` says: that is how
pools of different size differ.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnxruntime
from PIL import Image, ImageOps, ImageSequence, UnidentifiedImageError
from rapidocr_onnxruntime import RapidOCR

from tidemill import Context, File, PermanentError

PAGES_MAX = 50
PIXELS_MAX = 100_000_000  # 300 MB as RGB; a few kilobytes of PNG can claim much more


class Ocr:
    """Give the lines of a picture, top to bottom: their text, how sure the model is, and where they stand."""

    def load(self, ctx: Context) -> None:
        threads = thread_count()
        cuda = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
        cv2.setNumThreads(threads)  # OpenCV has a pool of its own, which does not read OMP_NUM_THREADS
        Image.MAX_IMAGE_PIXELS = PIXELS_MAX
        self.engine = RapidOCR(
            intra_op_num_threads=threads,
            inter_op_num_threads=1,
            det_use_cuda=cuda,
            cls_use_cuda=cuda,
            rec_use_cuda=cuda,
        )

    def __call__(self, file: File, ctx: Context) -> dict[str, Any]:
        """Give `lines` [{text, score 0-1, box (4 corners in pixels, clockwise), page}], `text`, `pages`, `seconds`."""
        min_score = float(ctx.params.get("min_score", 0.5))
        started = time.perf_counter()
        lines: list[dict[str, Any]] = []
        page = 0
        for page, count, pixels in pages(Path(file.path), file.name):
            found, _ = self.engine(pixels, text_score=min_score)
            for box, text, score in found or []:
                corners = [[round(float(x), 1), round(float(y), 1)] for x, y in box]
                lines.append({"text": text, "score": round(float(score), 4), "box": corners, "page": page})
            ctx.progress(page, count, "page")
            if ctx.cancelled:
                break
        return {
            "text": "\n".join(line["text"] for line in lines),
            "lines": lines,
            "pages": page,
            "seconds": round(time.perf_counter() - started, 4),
        }


def pages(path: Path, name: str) -> Iterator[tuple[int, int, np.ndarray]]:
    """Give (number from 1, number of pages, BGR pixels of shape (height, width, 3)) of each page of a picture.

    Only TIFF has pages; of an animation the first frame is read. What is no picture, is broken, or is larger than
    PIXELS_MAX raises PermanentError: another attempt would read the same bytes.
    """
    try:
        with Image.open(path) as image:
            if image.width * image.height > PIXELS_MAX:
                raise Image.DecompressionBombError(f"{image.width} x {image.height} pixels")
            count = min(getattr(image, "n_frames", 1), PAGES_MAX) if image.format == "TIFF" else 1
            for number, frame in enumerate(ImageSequence.Iterator(image), 1):
                yield number, count, pixels_of(frame)
                if number == count:
                    return
    except UnidentifiedImageError as error:
        raise PermanentError(
            f"{name} is not a picture that can be read. Give a PNG, JPEG, WebP, BMP or TIFF file; "
            "a PDF has to be turned into pictures first."
        ) from error
    except Image.DecompressionBombError as error:
        raise PermanentError(
            f"{name} is too large ({error}); at most {PIXELS_MAX:,} pixels are read. Cut it in parts or scale it down."
        ) from error
    except (OSError, SyntaxError, ValueError) as error:
        raise PermanentError(
            f"{name} begins like a picture, but is broken or cut off ({error}). Send the file again."
        ) from error


def pixels_of(frame: Image.Image) -> np.ndarray:
    """Give a frame as BGR, turned as its EXIF data say, what is transparent shown on white."""
    upright = ImageOps.exif_transpose(frame)
    if upright.has_transparency_data:
        layer = upright.convert("RGBA")
        upright = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    elif upright.mode.startswith(("I;16", "I", "F")):
        values = np.asarray(upright, dtype=np.float32)  # Pillow clips these to 8 bits instead of scaling them
        spread = max(float(values.max() - values.min()), 1.0)
        upright = Image.fromarray(((values - values.min()) * (255 / spread)).astype(np.uint8))
    return np.ascontiguousarray(np.asarray(upright.convert("RGB"))[:, :, ::-1])


def thread_count() -> int:
    """Give the threads that the models may use: OMP_NUM_THREADS, else the CPUs this process may run on."""
    usable = len(os.sched_getaffinity(0))
    wanted = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return max(1, min(int(wanted), usable)) if wanted.isdecimal() else usable
