"""Live logs, notes for operators, and the server's health."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from tidemill.ledger import wire
from tidemill.ledger.api import LogLine, Memory, Token
from tidemill.ledger.connection import Arg, Connection

LOG_LINES = 2000
LOG_LINE_CHARS = 4096
IGNORED = 10_000
JUNK = 1000
JUNK_BYTES = 4096


class NoteCalls:
    """Logs of running jobs, ignored objects, junk bodies, memory, ping."""

    _connection: Connection

    def append_log(self, token: Token, lines: Sequence[tuple[str, str]]) -> bool:
        args: list[Arg] = []
        for stream, text in lines[-LOG_LINES:]:
            args += (stream, text if len(text) <= LOG_LINE_CHARS else text[: LOG_LINE_CHARS - 1] + "…")
        # A repetition would double lines; a lost one is in the log file of the store.
        return bool(self._connection.run("append_log", *wire.token_args(token), LOG_LINES, *args, repeat=False))

    def log(self, job_id: str, after: str = "0", block_s: float = 0.0, limit: int = 1000) -> list[LogLine]:
        lines = self._connection.read_stream(self._connection.keys.of("log", job_id), after, block_s, limit)
        return [
            LogLine(position, int(position.partition("-")[0]) / 1000, fields["stream"], fields["text"])
            for position, fields in lines
        ]

    def note_ignored(self, bucket: str, key: str, reason: str) -> None:
        self._connection.run("note_ignored", f"{bucket}/{key}", reason, IGNORED)

    def ignored(self, limit: int = 1000) -> list[tuple[str, str, str, float]]:
        keys = self._connection.keys
        if limit < 1:
            return []
        names = self._connection.command("ZREVRANGE", keys.one("ignored_at"), 0, limit - 1)
        texts = self._connection.command("HMGET", keys.one("ignored"), *names) if names else []
        found = []
        for name, text in zip(names, texts, strict=True):
            if text is not None:
                bucket, _, key = name.partition("/")
                reason, at = json.loads(text)
                found.append((bucket, key, reason, int(at) / 1_000_000))
        return found

    def note_junk(self, source: str, reason: str, body: bytes) -> None:
        key = self._connection.keys.one("junk")
        shown = body[:JUNK_BYTES].decode("utf-8", "replace")
        entry = {"source": source, "reason": reason, "body": shown, "size": len(body), "at": time.time()}
        self._connection.together(("LPUSH", key, wire.dumps(entry)), ("LTRIM", key, 0, JUNK - 1), repeat=False)

    def junk(self, limit: int = 100) -> list[dict[str, Any]]:
        if limit < 1:
            return []
        entries = self._connection.command("LRANGE", self._connection.keys.one("junk"), 0, limit - 1)
        return [json.loads(entry) for entry in entries]

    def memory(self) -> Memory:
        info = self._connection.command("INFO", "memory")
        return Memory(used=int(info["used_memory"]), limit=int(info.get("maxmemory", 0)))

    def ping(self) -> float:
        started = time.perf_counter()
        self._connection.command("PING", repeat=False)
        return time.perf_counter() - started
