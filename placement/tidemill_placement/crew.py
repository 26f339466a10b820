"""Which agents were asked for, and what became of them: between the plan's numbers and a scaler's processes.

An agent is *booting* from the request until the ledger knows it. One whose process ended is reported to the ledger at
once, so that its jobs need not wait for their leases. A pool whose agents end before they ever reported gets a growing
pause, and the reason is shown where jobs wait for it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from tidemill.ledger.api import AgentReport
from tidemill.models import PoolSpec
from tidemill_placement.scalers import Scaler, ScalerError

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 60.0
_PATIENCE_S = 60.0  # and ten times the usual start: then a process that never reported is ended
_ASK_AGAIN_S = 10.0
log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Trouble:
    failures: int = 0
    until: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Booting:
    name: str
    pool: str
    since: float


@dataclass(slots=True)
class Crew:
    """The agents of all pools.

    Args:
        scalers: asked in this order for each pool.
        gone: called with each agent that the ledger knows and whose process has ended.
        new_name: gives a fresh agent name for a pool.
    """

    scalers: Sequence[Scaler]
    gone: Callable[[str], object]
    new_name: Callable[[str], str] = field(default=lambda pool: f"{pool}-{secrets.token_hex(3)}")
    booting: dict[str, Booting] = field(default_factory=dict)
    managed: dict[str, str] = field(default_factory=dict)
    reported: frozenset[str] = frozenset()
    _trouble: dict[str, _Trouble] = field(default_factory=dict)
    _known: set[str] = field(default_factory=set)
    _asked: dict[str, float] = field(default_factory=dict)
    _started: set[str] = field(default_factory=set)

    def serves(self, pool: PoolSpec) -> bool:
        return self._scaler(pool) is not None

    def trouble(self, pool: str, now: float) -> str | None:
        """Why no agent of the pool may be started now."""
        found = self._trouble.get(pool)
        return found.reason if found is not None and now < found.until else None

    @property
    def stirring(self) -> bool:
        """Whether an agent boots or is being stopped: then it is worth looking often."""
        return bool(self.booting or self._asked)

    def observe(
        self, pools: Mapping[str, PoolSpec], reports: Sequence[AgentReport], now: float, boot_s: Callable[[str], float]
    ) -> list[tuple[str, float]]:
        """Look at all processes. Gives (pool, seconds) for each agent that has reported for the first time."""
        self.reported = reported = frozenset(report.name for report in reports)
        arrived = [
            (agent.pool, now - agent.since)
            for name, agent in list(self.booting.items())
            if name in reported and self.booting.pop(name) and name in self._started
        ]
        for name, _ in arrived:
            self._trouble.pop(name, None)
        self._known |= reported
        alive: dict[str, str] = {}
        for pool in pools.values():
            if (scaler := self._scaler(pool)) is None:
                continue
            try:
                states = scaler.observe(pool)
            except ScalerError as error:
                self._fail(pool.name, str(error), now)
                alive |= {name: of for name, of in self.managed.items() if of == pool.name}
                continue
            for state in states:
                if state.state == "ended":
                    self._ended(pool.name, state.name, state.reason, state.failed, reported, now)
                    continue
                alive[state.name] = pool.name
                if state.name not in reported and state.name not in self._asked and state.state != "stopping":
                    since = self.booting[state.name].since if state.name in self.booting else min(state.since, now)
                    # One that reported once and fell silent boots anew from when we noticed.
                    since = now if state.name in self._known and state.name not in self.booting else since
                    self.booting[state.name] = Booting(state.name, pool.name, since)
                    if now - since > _PATIENCE_S + 10 * boot_s(pool.name):
                        self._fail(pool.name, "its agents start and never report", now)
                        self.stop(state.name, now)
        self.managed = alive
        for name in [name for name in self.booting if name not in alive]:
            del self.booting[name]
        for name in [name for name in self._asked if name not in alive]:
            del self._asked[name]
        self._known &= reported | set(alive)
        self._started &= set(alive)
        return arrived

    def start(self, pool: PoolSpec, count: int, now: float, leads: Callable[[], bool] = lambda: True) -> None:
        """Start agents of a pool. `leads` is asked right before each: another leader starts its own."""
        scaler = self._scaler(pool)
        if scaler is None:
            return
        for _ in range(count):
            name = self.new_name(pool.name)
            if not leads():
                log.warning("agent.not_started", pool=pool.name, reason="another placement service leads")
                return
            try:
                scaler.start(pool, name)
            except ScalerError as error:
                self._fail(pool.name, str(error), now)
                return
            log.info("agent.started", agent=name, pool=pool.name)
            self.booting[name] = Booting(name, pool.name, now)
            self.managed[name] = pool.name
            self._started.add(name)

    def stop(self, name: str, now: float) -> None:
        """Stop an agent; asked again only after a while."""
        if now - self._asked.get(name, 0.0) < _ASK_AGAIN_S:
            return
        self._asked[name] = now
        for scaler in self.scalers:
            try:
                scaler.stop(name)
            except ScalerError as error:
                log.warning("agent.stop_failed", agent=name, error=str(error))
        log.info("agent.stopped", agent=name)

    def stopping(self) -> Collection[str]:
        return self._asked.keys()

    def _ended(self, pool: str, name: str, reason: str, failed: bool, reported: Collection[str], now: float) -> None:
        was_booting = self.booting.pop(name, None)
        if was_booting is not None and name not in self._known and failed and name not in self._asked:
            self._fail(pool, f"its agents end before they are ready ({reason}); see the log of {name}", now)
        if name in reported:
            log.warning("agent.ended", agent=name, reason=reason)
            self.gone(name)

    def _fail(self, pool: str, reason: str, now: float) -> None:
        trouble = self._trouble.setdefault(pool, _Trouble())
        if now < trouble.until:  # the same trouble still
            return
        trouble.failures += 1
        pause_s = min(_FIRST_PAUSE_S * 2 ** min(trouble.failures - 1, 10), _LONGEST_PAUSE_S)
        trouble.until, trouble.reason = now + pause_s, reason
        log.warning("pool.trouble", pool=pool, reason=reason, pause_s=pause_s)

    def _scaler(self, pool: PoolSpec) -> Scaler | None:
        return next((scaler for scaler in self.scalers if scaler.serves(pool)), None)
