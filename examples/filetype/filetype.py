"""Say what kind of file something is, by its content, with Magika (a small neural network on ONNX Runtime).

The name of the file plays no part. The model is loaded once per runner, and runs on a GPU when the installed ONNX
Runtime has a CUDA provider, else on the CPU with as many threads as `OMP_NUM_THREADS` says.
"""

from __future__ import annotations

import os
from typing import Any

import onnxruntime
from magika import Magika

from tidemill import Context, File, PermanentError


class FileType:
    """Give label, MIME type, description, group and score of one file."""

    def load(self, ctx: Context) -> None:
        self.magika = Detector()

    def __call__(self, file: File, ctx: Context) -> dict[str, Any]:
        """Give `label` (such as `python`), `mime`, `description`, `group`, `score` 0-1, `is_text`, `extensions`."""
        found = self.magika.identify_path(file.path)
        if not found.ok:
            raise PermanentError(f"{file.name} could not be read ({found.status}). Send the file again.")
        kind = found.output
        return {
            "label": str(kind.label),
            "mime": kind.mime_type,
            "description": kind.description,
            "group": kind.group,
            "score": round(float(found.score), 4),
            "is_text": kind.is_text,
            "extensions": list(kind.extensions),
        }


class Detector(Magika):
    """Magika asks for the CPU and for all its cores; this one takes what the pool offers."""

    def _init_onnx_session(self) -> onnxruntime.InferenceSession:
        onnxruntime.disable_telemetry_events()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = thread_count()
        offered = onnxruntime.get_available_providers()
        wanted = [name for name in ("CUDAExecutionProvider", "CPUExecutionProvider") if name in offered]
        return onnxruntime.InferenceSession(self._model_path, sess_options=options, providers=wanted)


def thread_count() -> int:
    """Give the threads that the model may use: OMP_NUM_THREADS, else the CPUs this process may run on."""
    usable = len(os.sched_getaffinity(0))
    wanted = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return max(1, min(int(wanted), usable)) if wanted.isdecimal() else usable
