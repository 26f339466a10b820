"""Named places between two steps, where a test makes a process die, wait, or find a server gone.

    failpoint("attempt.fetched")

does nothing but test one module-level bool, unless `TIDEMILL_FAILPOINTS` is set when the process starts. It holds
rules, separated by commas; the first one that fits a name and has not spent its count is tried:

    <name or shell pattern>=<action>[@<probability>][#<count>]
    ending.committed=kill@0.2#1, publish.*=delay(1.5), epoch.begun=raise(store)

| action | what happens there |
|---|---|
| `kill` | the process gets SIGKILL |
| `delay(S)` | the thread waits S seconds |
| `raise(store)`, `raise(ledger)` | `StoreUnavailable` or `LedgerUnavailable` is raised, as if no answer had come |
| `skew(S)`, of the name `clock` only | `now()` is S seconds off |

An entry `@FILE` names a file with more rules (`TIDEMILL_FAILPOINTS_SEED` and counts apply to both). It is read again
whenever it changes, so that a fault can begin and end while the system runs, and its counts are counted over all
processes that read it: each hit leaves a file `<FILE>.hits/<name>.<number>`, which also tells afterwards what was hit.

Names are `<module>.<what has just happened>`. Never set this in an installation that anybody relies on.
"""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from tidemill.errors import LedgerUnavailable, StoreUnavailable

VARIABLE = "TIDEMILL_FAILPOINTS"
SEED = "TIDEMILL_FAILPOINTS_SEED"
_RULE = re.compile(r"([A-Za-z0-9_.*?-]+)=(kill|delay|raise|skew)(?:\(([^()]*)\))?(?:@([0-9.]+))?(?:#([0-9]+))?")
_ERRORS = {"store": StoreUnavailable, "ledger": LedgerUnavailable}


@dataclass(slots=True)
class Rule:
    """One entry. `count` None: as often as it comes; `folder`: where hits are counted for all processes together."""

    pattern: str
    action: str
    argument: str
    probability: float = 1.0
    count: int | None = None
    folder: Path | None = None
    hits: int = 0

    def take(self, name: str) -> bool:
        """Count a hit; false when the count is spent."""
        if self.folder is None:
            self.hits += 1
            return self.count is None or self.hits <= self.count
        self.folder.mkdir(exist_ok=True)
        label = re.sub(r"[^A-Za-z0-9.-]", "_", self.pattern)
        while self.count is None or self.hits < self.count:
            self.hits += 1
            try:
                with (self.folder / f"{label}.{self.hits}").open("x") as mark:
                    mark.write(f"{name} {self.action} {os.getpid()} {time.time():.3f}\n")
            except FileExistsError:
                continue  # another process was hit
            return True
        return False


def parse(text: str, folder: Path | None = None) -> list[Rule]:
    """Read rules, separated by commas or line ends.

    Raises:
        ValueError: an entry that is no rule; a failpoint that silently does nothing would prove nothing.
    """
    rules = []
    for entry in filter(None, (part.strip() for part in re.split(r"[,\n]", text))):
        match = _RULE.fullmatch(entry)
        if match is None:
            raise ValueError(f"{VARIABLE}: {entry!r} is no rule like ending.committed=kill@0.2#1")
        pattern, action, argument, probability, count = match.groups()
        if action in ("delay", "skew"):
            float(argument or "")
        elif argument not in (_ERRORS if action == "raise" else (None,)):
            raise ValueError(f"{VARIABLE}: {entry!r}: it is raise(store) or raise(ledger), and kill without argument")
        rules.append(
            Rule(pattern, action, argument or "", float(probability or 1), int(count) if count else None, folder)
        )
    return rules


@dataclass(slots=True)
class Plan:
    """The rules of a process, and its dice: seeded by `SEED` and the process, so that each process has its own luck."""

    rules: list[Rule]
    files: list[Path]
    dice: random.Random
    _from_files: list[Rule] = field(default_factory=list)
    _read_at: dict[Path, int] = field(default_factory=dict)
    _mutex: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Plan | None:
        """Give what the environment asks for; None: nothing."""
        text = environment.get(VARIABLE, "").strip()
        if not text:
            return None
        entries = [part.strip() for part in text.split(",")]
        files = [Path(entry[1:]) for entry in entries if entry.startswith("@")]
        rules = parse(",".join(entry for entry in entries if not entry.startswith("@")))
        dice = random.Random(f"{environment.get(SEED, '')}/{os.getpid()}")  # noqa: S311 - luck, not a secret
        return cls(rules, files, dice)

    def decide(self, name: str) -> Rule | None:
        """Give the rule that strikes here and now, if any."""
        with self._mutex:
            self._look()
            for rule in (*self.rules, *self._from_files):
                if fnmatchcase(name, rule.pattern) and self.dice.random() < rule.probability and rule.take(name):
                    return rule
        return None

    def _look(self) -> None:
        for path in self.files:
            try:
                changed = path.stat().st_mtime_ns
            except FileNotFoundError:
                changed = 0
            if self._read_at.get(path) != changed:
                self._read_at[path] = changed
                self._from_files = parse(path.read_text(), path.with_name(f"{path.name}.hits")) if changed else []


_plan = Plan.of(os.environ)
_active = _plan is not None


def failpoint(name: str) -> None:
    """Mark the place between two steps; `name` says what has just happened."""
    if _active:
        _reached(name)


def now() -> float:
    """Give the time in seconds since 1970, off by what a rule `clock=skew(S)` says."""
    if not _active:
        return time.time()
    rules = _plan.rules if _plan is not None else []
    return time.time() + sum(float(rule.argument) for rule in rules if rule.action == "skew")


def _reached(name: str) -> None:
    rule = _plan.decide(name) if _plan is not None else None
    if rule is None:
        return
    if rule.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif rule.action == "delay":
        time.sleep(float(rule.argument))
    elif rule.action == "raise":
        raise _ERRORS[rule.argument](f"failpoint {name}")
