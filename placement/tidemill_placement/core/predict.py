"""Online predictions: run time per function and pool, start time per pool, load time per function, transfer.

Run times are taken as lognormal. Each function x pool keeps a running mean and variance of the logarithm (Welford's
update, with the count capped so that old observations fade). An estimate with few observations leans on a prior: the
function's times in other pools, shifted by how the two pools compare over the functions that both have run; failing
that a default, scaled by the kind of GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tidemill.models import PoolSpec

_MEMORY = 64  # observations after which the running mean becomes a moving one
_DEFAULT_RUN_S = 3.0
_DEFAULT_LOAD_S = 2.0
_PRIOR_VARIANCE = 0.25  # of log seconds: a p90 at 1.9 times the median
_Z90 = 1.2816
_SMALLEST_S = 0.0005
_ROUND_TRIP_S = 0.005
# Speed of GPU kinds relative to an A10, from their list of peak rates; learned times soon outweigh it.
SPEED = {"T4": 0.45, "L4": 0.95, "A10": 1.0, "A10G": 1.0, "V100": 1.1, "A100": 2.6, "H100": 5.0, "H200": 5.5}


@dataclass(frozen=True, slots=True)
class Forecast:
    """Seconds of a run: median and 90 % bound, and on how many observations of this very pool they rest."""

    p50: float
    p90: float
    samples: int


@dataclass(slots=True)
class _Stat:
    count: int = 0
    weight: float = 0.0
    mean: float = 0.0
    variance: float = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self.weight = min(self.weight + 1.0, _MEMORY)
        share = 1.0 / self.weight
        delta = value - self.mean
        self.mean += share * delta
        self.variance = (1.0 - share) * (self.variance + share * delta * delta)


class Estimates:
    """What was learned so far. `observe_*` learn, the rest reads; nothing here knows the time of day."""

    def __init__(self) -> None:
        self._runs: dict[str, dict[str, _Stat]] = {}
        self._starts: dict[str, float] = {}
        self._loads: dict[str, float] = {}
        self._cache: dict[tuple[str, str], Forecast] = {}

    def observe_run(self, function: str, pool: str, seconds: float) -> None:
        """Learn from a run that succeeded."""
        self._runs.setdefault(function, {}).setdefault(pool, _Stat()).add(math.log(max(seconds, _SMALLEST_S)))
        self._cache.clear()

    def observe_start(self, pool: str, seconds: float) -> None:
        """Learn from an agent's start: seconds from the request to its first report."""
        old = self._starts.get(pool)
        self._starts[pool] = seconds if old is None else 0.7 * old + 0.3 * seconds

    def observe_load(self, function: str, seconds: float) -> None:
        """Learn from a runner's start: seconds until it was ready for its first job."""
        old = self._loads.get(function)
        self._loads[function] = seconds if old is None else 0.7 * old + 0.3 * seconds

    def run(self, function: str, pool: PoolSpec, needs_gpu: bool = False) -> Forecast:
        """Predict the run of a function in a pool."""
        key = (function, pool.name)
        if (found := self._cache.get(key)) is None:
            found = self._cache[key] = self._forecast(function, pool, needs_gpu)
        return found

    def start_s(self, pool: PoolSpec) -> float:
        """Predict seconds from the request for an agent to its first job."""
        return self._starts.get(pool.name, pool.agents.start)

    def load_s(self, function: str) -> float:
        """Predict seconds until a new runner of a function is ready."""
        return self._loads.get(function, _DEFAULT_LOAD_S)

    def transfer_s(self, size_bytes: int, pool: PoolSpec) -> float:
        """Predict seconds to fetch an input."""
        return _ROUND_TRIP_S + size_bytes * 8 / (pool.network.mbit * 1e6)

    def _forecast(self, function: str, pool: PoolSpec, needs_gpu: bool) -> Forecast:
        stat = self._runs.get(function, {}).get(pool.name, _Stat())
        prior, weight = self._prior(function, pool, needs_gpu)
        total = stat.weight + weight
        mean = (stat.weight * stat.mean + weight * prior) / total
        variance = (stat.weight * stat.variance + 2.0 * _PRIOR_VARIANCE) / (stat.weight + 2.0)
        return Forecast(math.exp(mean), math.exp(mean + _Z90 * math.sqrt(variance)), stat.count)

    def _prior(self, function: str, pool: PoolSpec, needs_gpu: bool) -> tuple[float, float]:
        """Give log seconds and the number of observations that they are worth."""
        total = weight = 0.0
        for other, stat in sorted(self._runs.get(function, {}).items()):
            if other != pool.name:
                total += stat.weight * (stat.mean + self._ratio(pool.name, other))
                weight += stat.weight
        if weight:
            return total / weight, 1.0
        speed = SPEED.get(pool.gpu.kind.upper(), 1.0) if needs_gpu and pool.gpu else 1.0
        return math.log(_DEFAULT_RUN_S / speed), 0.1

    def _ratio(self, pool: str, other: str) -> float:
        """Give log(seconds in pool / seconds in other) over the functions that both have run; 0 when there is none."""
        total = weight = 0.0
        for _, pools in sorted(self._runs.items()):
            if (here := pools.get(pool)) and (there := pools.get(other)):
                share = min(here.weight, there.weight)
                total += share * (here.mean - there.mean)
                weight += share
        return total / weight if weight else 0.0
