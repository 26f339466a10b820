"""Makes the faults of a plan happen, and undoes each when its time is over; `mend` undoes all at once."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import redis

from tests.faults.events import EventProxy
from tests.faults.schedule import Fault
from tests.faults.servers import Redis, Store
from tests.faults.toxiproxy import Toxiproxy
from tests.support.disk import Disk
from tidemill.local.errors import LocalError

_COPY_EVERY_S = 4.0
_REVIVE_EVERY_S = 1.5


class Breakable(Protocol):
    """What can be broken: `tests.faults.system.System`, or anything else with servers, events and processes."""

    redis: Redis
    store: Store
    events: EventProxy
    proxy: Toxiproxy | None
    rules: Path
    disks: Mapping[str, Disk]

    def pids(self, what: str) -> list[int]: ...

    def agent_names(self) -> dict[int, str]: ...

    def revive(self) -> None: ...

    def go_down(self) -> None: ...

    def go_up(self) -> None: ...

    def wait_ready(self) -> None: ...


@dataclass(order=True)
class _Due:
    at: float
    order: int
    action: Callable[[], None] = field(compare=False)
    fault: Fault | None = field(compare=False, default=None)


@dataclass(slots=True)
class Strike:
    """A fault that happened: when (monotonic seconds), to what, and the jobs that ran there."""

    fault: Fault
    at: float
    victim: str = ""
    jobs: tuple[str, ...] = ()


class Injector:
    """Runs a plan on the main thread: servers that it starts live as long as that."""

    def __init__(self, system: Breakable, faults: Sequence[Fault], tell: Callable[[str], None]) -> None:
        self.strikes: list[Strike] = []
        self.hits: list[str] = []
        self._system = system
        self._tell = tell
        self._numbers = itertools.count()
        self._due: list[_Due] = []
        self._undo: dict[str, Callable[[], None]] = {}
        self._faults = faults
        self._rules = 0

    def run(self, window_s: float) -> None:
        """Let the plan happen; returns when the window is over, with some faults perhaps still there."""
        began = time.monotonic()
        for fault in self._faults:
            self._plan(began + fault.at_s, lambda fault=fault: self._strike(fault), fault)
        self._revive()
        if any(fault.kind == "redis" and fault.what == "restore" for fault in self._faults):
            self._copy(began + window_s)
        while (now := time.monotonic()) < began + window_s:
            if self._due and self._due[0].at <= now:
                heapq.heappop(self._due).action()
            else:
                time.sleep(min(0.05, began + window_s - now))

    def mend(self) -> None:
        """End every fault that is still there."""
        self._due.clear()
        for name in sorted(self._undo, key=lambda name: not name.startswith("pause")):  # a stopped server cannot start
            self._end(name)
        self._system.redis.start()
        self._system.store.start()
        self._system.redis.unfill()
        self._system.wait_ready()
        self._system.revive()

    # -- plan ----------------------------------------------------------------------------------------------------
    def _plan(self, at: float, action: Callable[[], None], fault: Fault | None = None) -> None:
        heapq.heappush(self._due, _Due(at, next(self._numbers), action, fault))

    def _until(self, name: str, lasts_s: float, undo: Callable[[], None]) -> None:
        """Undo something later. A second fault of the same name ends the first one's claim on it."""
        self._undo[name] = undo
        self._plan(time.monotonic() + lasts_s, lambda: self._end(name) if self._undo.get(name) is undo else None)

    def _end(self, name: str) -> None:
        self._undo.pop(name)()

    def _revive(self) -> None:
        self._system.revive()
        self._plan(time.monotonic() + _REVIVE_EVERY_S, self._revive)

    def _copy(self, until: float) -> None:
        self._system.redis.copy()
        if time.monotonic() + _COPY_EVERY_S < until:
            self._plan(time.monotonic() + _COPY_EVERY_S, lambda: self._copy(until))

    # -- faults --------------------------------------------------------------------------------------------------
    def _strike(self, fault: Fault) -> None:
        strike = Strike(fault, time.monotonic())
        try:
            strike.victim = getattr(self, f"_{fault.kind}")(fault, strike)
        except (redis.RedisError, LocalError) as error:  # Redis, or all of `up`, is away: so be it
            strike.victim = f"not done: {error}"
        self.strikes.append(strike)
        self._tell(f"{fault}  -> {strike.victim}")

    def _kill(self, fault: Fault, strike: Strike) -> str:
        pids = self._system.pids(fault.what)
        if not pids:
            return "nobody there"
        pid = pids[int(fault.luck * len(pids))]
        strike.jobs = self._jobs_of(pid) if fault.what == "agent" else ()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return str(pid)

    def _pause(self, fault: Fault, strike: Strike) -> str:
        pids = self._system.pids(fault.what)
        if not pids:
            return "nobody there"
        pid = pids[int(fault.luck * len(pids))]
        strike.jobs = self._jobs_of(pid) if fault.what == "agent" else ()
        if not _signal(pid, signal.SIGSTOP):
            return "nobody there"
        self._until(f"pause {pid}", fault.lasts_s, lambda: _signal(pid, signal.SIGCONT) and None)
        return str(pid)

    def _connection(self, fault: Fault, strike: Strike) -> str:
        proxy = self._system.proxy
        assert proxy is not None
        line = f"{fault.facts['to']}-{fault.facts['line']}"
        proxy.break_(line, fault.what, fault.facts)
        self._until(f"line {line}", fault.lasts_s, lambda: proxy.mend(line))
        return line

    def _redis(self, fault: Fault, strike: Strike) -> str:
        server = self._system.redis
        if fault.what == "flush":
            server.flush()
        elif fault.what == "kick":
            server.kick()
        elif fault.what == "fill":
            server.fill(fault.facts["share"])
            self._until("fill", fault.lasts_s, self._unfill)
        elif fault.what == "restore" and "disk redis" in self._undo:
            return "not done: no room for a copy"
        elif fault.what == "restore":
            age_s = server.restore(fault.facts["age_s"])
            server.begin()
            return f"{age_s:.1f} s old" if age_s is not None else "no copy yet"
        else:
            server.kill()
            self._until("redis", fault.lasts_s, server.begin)
        return ""

    def _unfill(self) -> None:
        with contextlib.suppress(redis.RedisError):  # killed meanwhile: the ballast goes at the end
            self._system.redis.unfill()

    def _outage(self, fault: Fault, strike: Strike) -> str:
        self._system.go_down()
        self._until("outage", fault.lasts_s, self._system.go_up)
        return ""

    def _store(self, fault: Fault, strike: Strike) -> str:
        self._system.store.kill()
        self._until("store", fault.lasts_s, self._system.store.begin)
        return ""

    def _disk(self, fault: Fault, strike: Strike) -> str:
        disk = self._system.disks.get(fault.what)
        if disk is None:
            return "not done: nothing can be mounted here"
        disk.fill()
        self._until(f"disk {fault.what}", fault.lasts_s, lambda: self._clear(fault.what, disk))
        return f"{disk.used_bytes():,} bytes"

    def _clear(self, what: str, disk: Disk) -> None:
        """There is room again. The store's index takes no write until it starts again, as `tidemill up` makes it."""
        disk.clear()
        store = self._system.store
        if what == "store" and "store" not in self._undo:  # one that was killed comes back by itself
            store.kill()
            store.begin()
        elif what == "redis" and "redis" not in self._undo:
            self._system.redis.begin()  # it does not start on a full disk

    def _events(self, fault: Fault, strike: Strike) -> str:
        events = self._system.events
        events.mode, events.share = fault.what, fault.facts["share"]

        def calm() -> None:
            events.mode = ""

        self._until("events", fault.lasts_s, calm)
        return ""

    def _failpoints(self, fault: Fault, strike: Strike) -> str:
        place, facts = fault.facts["place"], fault.facts
        action = {"kill": "kill", "delay": f"delay({facts.get('s')})", "raise": f"raise({facts.get('server')})"}
        count = f"#{facts['count']}" if "count" in facts else ""
        self._disarm()
        fresh = self._system.rules.with_name("failpoints.new")
        fresh.write_text(f"{place}={action[fault.what]}{count}\n")
        fresh.rename(self._system.rules)
        self._until("failpoints", fault.lasts_s, self._disarm)
        return ""

    def _disarm(self) -> None:
        rules = self._system.rules
        rules.unlink(missing_ok=True)
        hits = rules.with_name(f"{rules.name}.hits")
        if hits.exists():
            self.hits += [path.read_text().strip() for path in sorted(hits.iterdir())]
            self._rules += 1
            hits.rename(rules.with_name(f"{rules.name}.hits.{self._rules}"))

    # ------------------------------------------------------------------------------------------------------------
    def _jobs_of(self, pid: int) -> tuple[str, ...]:
        name = self._system.agent_names().get(pid)
        key = f"tm:running:{name}"
        with redis.Redis.from_url(self._system.redis.url, socket_timeout=2, decode_responses=True) as client:
            try:
                return tuple(sorted(client.smembers(key)))
            except redis.RedisError:
                return ()


def _signal(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
