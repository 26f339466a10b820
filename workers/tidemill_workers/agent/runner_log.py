"""The log of one job, out of what its process prints: split into lines, bounded, whatever is printed.

A function may print 50 MB, or binary without a line end. So a line is cut at 8 KiB, and of a whole log the beginning
and the end are kept: the first 512 KiB, delivered as they come, and the last 64 KiB, delivered when the job ends,
with a line in between that says how much is missing.
"""

from __future__ import annotations

from collections import deque

LINE_LIMIT_BYTES = 8 * 1024
HEAD_LIMIT_BYTES = 512 * 1024
TAIL_LIMIT_BYTES = 64 * 1024
_EXCERPT_LINES, _EXCERPT_BYTES = 40, 8 * 1024

Line = tuple[str, str]  # stream (stdout, stderr, log, tidemill), text


class JobLog:
    """Not safe for several threads by itself: its owner holds a lock."""

    def __init__(self) -> None:
        self._partial: dict[str, bytes] = {}
        self._cut: dict[str, int] = {}
        self._ready: list[Line] = []
        self._head_bytes = 0
        self._tail: deque[tuple[str, bytes]] = deque()
        self._tail_bytes = 0
        self._dropped_lines = 0
        self._dropped_bytes = 0
        self._recent: deque[bytes] = deque(maxlen=_EXCERPT_LINES)

    def feed(self, stream: str, chunk: bytes) -> None:
        """Raw output of a stream, in pieces of any size."""
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            self._append(stream, line)
            self._end_line(stream)
        self._append(stream, rest)

    def line(self, stream: str, text: str) -> None:
        """One whole line that came as text."""
        self._keep(stream, text.encode("utf-8", "replace")[:LINE_LIMIT_BYTES])

    @property
    def pending(self) -> bool:
        """Whether there are lines to deliver now."""
        return bool(self._ready)

    def take(self) -> list[Line]:
        """The lines to deliver now; each is given once."""
        ready, self._ready = self._ready, []
        return ready

    def finish(self) -> list[Line]:
        """The lines that are left when the job has ended."""
        for stream in [stream for stream, part in self._partial.items() if part]:
            self._end_line(stream)
        lines = self.take()
        if self._dropped_lines:
            note = f"[{self._dropped_lines:,} lines with {self._dropped_bytes:,} bytes are not kept]"
            lines.append(("tidemill", note))
        lines += [(stream, _text(line)) for stream, line in self._tail]
        self._tail.clear()
        return lines

    def excerpt(self) -> str:
        """The last lines (at most 40, at most 8 KiB), for an error."""
        lines = [*self._recent, *(part for part in self._partial.values() if part)]
        text = "\n".join(_text(line) for line in lines[-_EXCERPT_LINES:])
        return text.encode()[-_EXCERPT_BYTES:].decode("utf-8", "ignore")

    def _append(self, stream: str, data: bytes) -> None:
        if not data:
            return
        before = self._partial.get(stream, b"")
        room = LINE_LIMIT_BYTES - len(before)
        if len(data) > room:
            self._cut[stream] = self._cut.get(stream, 0) + len(data) - room
            data = data[:room]
        self._partial[stream] = before + data

    def _end_line(self, stream: str) -> None:
        line = self._partial.pop(stream, b"")
        cut = self._cut.pop(stream, 0)
        # A progress bar draws over itself with carriage returns: its last state is the line.
        line = line.rstrip(b"\r").rpartition(b"\r")[2]
        if cut:
            line += b" [%d more bytes]" % cut
            self._dropped_bytes += cut
        self._keep(stream, line)

    def _keep(self, stream: str, line: bytes) -> None:
        self._recent.append(line)
        if self._head_bytes < HEAD_LIMIT_BYTES:
            self._head_bytes += len(line) + 1
            self._ready.append((stream, _text(line)))
            return
        self._tail.append((stream, line))
        self._tail_bytes += len(line) + 1
        while self._tail_bytes > TAIL_LIMIT_BYTES:
            dropped = len(self._tail.popleft()[1]) + 1
            self._tail_bytes -= dropped
            self._dropped_bytes += dropped
            self._dropped_lines += 1


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace")
