"""One score for time and money: US dollars, lower is better.

score = value of time x hours until the result + dollars of the run (+ a penalty beyond a deadline).

    latency   an hour of waiting is worth $100
    balanced  what the operator set, $3 by default
    cost      $0.2
    deadline  $0.05, and each job whose 90 % bound lies beyond its deadline pays $1 and $100 for each hour of lateness
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.models import FunctionSpec, Objective
from tidemill_placement.core.words import duration, rate
from tidemill_placement.core.world import Rules

_LATENCY, _COST, _DEADLINE = 100.0, 0.2, 0.05
_LATE_USD, _LATE_USD_PER_HOUR = 1.0, 100.0


@dataclass(frozen=True, slots=True)
class Goal:
    """What a function asks for. `deadline_s` counts from the job's acceptance."""

    usd_per_hour: float
    deadline_s: float | None

    def score(self, p50_s: float, p90_s: float, usd: float, age_s: float = 0.0) -> float:
        """Judge a result that is there in `p50_s` (`p90_s` at the worst) from now, for a job that is `age_s` old."""
        score = self.usd_per_hour * p50_s / 3600 + usd
        if self.deadline_s is not None and (late_s := age_s + p90_s - self.deadline_s) > 0:
            score += _LATE_USD + _LATE_USD_PER_HOUR * late_s / 3600
        return score

    @property
    def words(self) -> str:
        if self.deadline_s is not None:
            return f"for the deadline of {duration(self.deadline_s)}"
        return f"at {rate(self.usd_per_hour)} of waiting"


def goal_of(spec: FunctionSpec, rules: Rules) -> Goal:
    """Give the goal of a function."""
    match spec.placement.objective:
        case Objective.latency:
            return Goal(_LATENCY, None)
        case Objective.cost:
            return Goal(_COST, None)
        case Objective.deadline:
            return Goal(_DEADLINE, spec.placement.deadline)
        case Objective.balanced:
            return Goal(rules.value_of_time_usd_per_hour, None)
