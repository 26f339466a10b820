"""The code of functions on an agent's disk: one folder per archive, fetched once, shared by all runners of the host."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from tidemill.models import FunctionRecord
from tidemill.record import Record


class CodeCache:
    """Unpacked code archives below `root`, named by their SHA-256."""

    def __init__(self, root: Path, record: Record) -> None:
        self._root = root
        self._record = record
        root.mkdir(parents=True, exist_ok=True)
        root.chmod(0o755)

    def folder(self, function: FunctionRecord) -> Path:
        """Give the folder with the function's code.

        Raises:
            NotFound: when the archive is not in the platform bucket.
            StoreUnavailable: when the store does not answer.
        """
        if function.code_sha256 is None:
            empty = self._root / "empty"
            empty.mkdir(exist_ok=True)
            return empty
        final = self._root / function.code_sha256
        if final.is_dir():
            return final
        fresh = Path(tempfile.mkdtemp(dir=self._root, prefix=".new-"))
        try:
            self._record.fetch_code(function.code_sha256, fresh)
            fresh.chmod(0o755)
            try:
                os.rename(fresh, final)
            except OSError:
                if not final.is_dir():  # somebody else was first; anything else is a real fault
                    raise
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        return final
