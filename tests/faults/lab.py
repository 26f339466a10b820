"""One run: a system, a load, faults, peace, and the verdict."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.faults import schedule
from tests.faults.checker import Checker, Verdict
from tests.faults.injector import Injector, Strike
from tests.faults.load import Load
from tests.faults.system import LEASE_S, System
from tidemill.errors import ServiceUnavailable
from tidemill.local.ready import NotReady

ALL = ("kill", "pause", "connection", "redis", "store", "events", "failpoints", "outage", "clock", "disk")
FLOWER_S = 20.0  # it is told again of everything after each of its starts
CALM_S = 5.0  # two rounds of the reconciler, and more, in which nothing may begin again


@dataclass(frozen=True, slots=True)
class Choice:
    """What one run is. `minutes` is the time in which files come and faults happen; `settle_s` the longest wait after
    it until everything is over. `protections_off` names a folder whose sitecustomize takes a protection away."""

    seed: int
    jobs: int = 200
    minutes: float = 2.0
    faults: tuple[str, ...] = ALL
    gap_s: float = 3.0
    settle_s: float = 120.0
    keep: Path | None = None
    protections_off: Path | None = None

    @property
    def window_s(self) -> float:
        return self.minutes * 60

    def command(self) -> str:
        """The command line that does it again."""
        return (
            f"python -m tests.faults --seed {self.seed} --jobs {self.jobs} --minutes {self.minutes:g} "
            f"--gap {self.gap_s:g} --faults {','.join(self.faults) or 'none'}"
        )


@dataclass(slots=True)
class Result:
    """What came of a run. Delays in seconds."""

    choice: Choice
    verdict: Verdict
    strikes: list[Strike]
    hits: list[str]
    delays: dict[str, list[float]]
    settled_s: float
    seconds: float
    folder: Path | None
    store_writes: int = 0
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {
            "seed": self.choice.seed,
            "jobs": self.choice.jobs,
            "minutes": self.choice.minutes,
            "faults": len(self.strikes),
            "violations": {kind: len(said) for kind, said in self.verdict.found.items()},
            "sentences": {kind: said for kind, said in self.verdict.found.items() if said},
            "facts": self.verdict.facts,
            "failpoints_hit": len(self.hits),
            "recovery_s": {what: [round(delay, 2) for delay in delays] for what, delays in self.delays.items()},
            "settled_s": round(self.settled_s, 1),
            "seconds": round(self.seconds, 1),
            "strikes": [{**asdict(strike.fault), "victim": strike.victim} for strike in self.strikes],
        }


def run(choice: Choice, tell: Callable[[str], None]) -> Result:
    """Do one run. From the main thread. Its folder is removed when all is well, and kept else (`result.folder`)."""
    folder = Path(tempfile.mkdtemp(prefix=f"tidemill-faults-{choice.seed}-", dir=choice.keep))
    kept = True
    try:
        result = _run(choice, folder, tell)
        kept = not result.verdict.clean or choice.keep is not None
        result.folder = folder if kept else None
        return result
    except KeyboardInterrupt:
        kept = False
        raise
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)


def _run(choice: Choice, folder: Path, tell: Callable[[str], None]) -> Result:
    began = time.monotonic()
    faults = schedule.faults(choice.seed, choice.faults, choice.window_s, choice.gap_s, LEASE_S)
    drops = schedule.drops(choice.seed, choice.jobs, choice.window_s * 0.9)
    system = System(
        folder,
        choice.seed,
        proxied="connection" in schedule.chosen(choice.faults),
        skewed="clock" in choice.faults,
        disks="disk" in schedule.chosen(choice.faults),
        sitecustomize=choice.protections_off,
    )
    left: list[str] = []
    try:
        tell(f"seed {choice.seed}: starting the system in {folder}")
        system.start()
        load = Load(system.record.store, system.urls, system.token, drops, choice.seed)
        injector = Injector(system, faults, tell)
        watch = _Watch(system)
        broke_off = True
        try:
            tell(f"up after {time.monotonic() - began:.1f} s; {len(drops)} files, {len(faults)} faults")
            load.start()
            watch.start()
            injector.run(choice.window_s)
            tell("the faults are over; mending")
            unready = _mend(injector)
            broke_off = False
            mended = time.monotonic()
            load.finish(min(60.0, choice.settle_s / 2))
            checker = Checker(system.record, system.ledger, system.redis.url, load.journal)
            _settle(checker, mended + choice.settle_s, tell)
            settled_s = time.monotonic() - mended
            time.sleep(CALM_S)
            watch.stop()
            verdict = checker.judge(system.events.writes)
            if unready:
                verdict.say("stuck", unready)
            _rows(system, checker, verdict)
        finally:
            if broke_off:
                injector_undo(injector)
            load.stop()
            watch.stop()
        for hit in injector.hits:
            tell(f"failpoint hit: {hit}")
        delays = _delays(injector.strikes, watch.first_seen)
    finally:
        left = system.close()
    for sentence in left:
        verdict.say("leaked", sentence)
    return Result(
        choice,
        verdict,
        injector.strikes,
        injector.hits,
        delays,
        settled_s,
        time.monotonic() - began,
        None,
        sum(map(len, system.events.writes.values())),
    )


def _mend(injector: Injector) -> str:
    """End all faults. Gives what is not as it was: a system that does not come back is a finding like others."""
    try:
        injector.mend()
    except NotReady as error:
        return str(error)
    return ""


def _rows(system: System, checker: Checker, verdict: Verdict) -> None:
    """Flower's rows, which may follow a little later."""
    give_up = time.monotonic() + FLOWER_S
    while (wrong := checker.wrong_rows(system.flower_rows())) and time.monotonic() < give_up:
        time.sleep(0.5)
    for sentence in wrong:
        verdict.say("rows", sentence)


def injector_undo(injector: Injector) -> None:
    """A run that broke off must leave nobody stopped: a stopped process cannot be asked to end."""
    try:
        injector.mend()
    except Exception as error:  # noqa: BLE001 - the run failed already, with its own reason
        print(f"mending failed: {error!r}")


def _settle(checker: Checker, until: float, tell: Callable[[str], None]) -> None:
    said = 0.0
    while time.monotonic() < until:
        try:
            waiting = checker.open()
        except ServiceUnavailable as error:
            waiting = [str(error)]
        if not waiting:
            return
        if time.monotonic() - said > 5.0:
            said = time.monotonic()
            tell(f"{len(waiting)} not over yet")
        time.sleep(0.5)


class _Watch:
    """Notes when each manifest was first seen: the clock of recovery."""

    def __init__(self, system: System) -> None:
        self.first_seen: dict[str, float] = {}
        self._system = system
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(10)

    def _run(self) -> None:
        while not self._stop.wait(0.3):
            try:
                now = time.monotonic()
                for _, job_id, _ in self._system.record.manifests():
                    self.first_seen.setdefault(job_id, now)
            except ServiceUnavailable:
                self._stop.wait(0.5)


def _delays(strikes: list[Strike], first_seen: Mapping[str, float]) -> dict[str, list[float]]:
    """Recovery: for a killed agent, until the last of its running jobs was over; else until the next job was over."""
    found: dict[str, list[float]] = {}
    ends = sorted(first_seen.values())
    for strike in strikes:
        if strike.fault.kind != "kill" or not strike.victim.isdigit():
            continue
        if strike.fault.what == "agent":
            after = [first_seen[job] - strike.at for job in strike.jobs if first_seen.get(job, 0) > strike.at]
        else:
            after = [end - strike.at for end in ends if end > strike.at][:1]
        if after:
            found.setdefault(strike.fault.what, []).append(max(after))
    return found
