"""Hard filters: where a function may not run, each with a sentence for people.

An exclusion is permanent when nothing but a change of the function or the pool lifts it; a job whose pools are all
excluded for good fails at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from tidemill.models import FunctionSpec, PoolSpec
from tidemill_placement.core.prices import usd_per_hour
from tidemill_placement.core.words import gibibytes, money
from tidemill_placement.core.world import Pool


@dataclass(frozen=True, slots=True)
class Exclusion:
    reason: str
    permanent: bool


def excluded(spec: FunctionSpec, pool: Pool, agents: int) -> Exclusion | None:
    """Give why a function may not run in a pool that has so many agents (booting ones included), or None."""
    if reason := _not_allowed(spec, pool.spec) or _gpu(spec, pool.spec):
        return Exclusion(reason, permanent=True)
    if usd_per_hour(pool.spec) is None:
        kind = pool.spec.gpu.kind if pool.spec.gpu else "CPU"
        return Exclusion(f"the catalogue has no price of {kind}; write price: {{usd_per_hour: …}}", permanent=True)
    if pool.spec.agents.max == 0:
        return Exclusion("the pool may have no agents (agents.max is 0)", permanent=True)
    if pool.draining:
        return Exclusion("the pool is draining", permanent=False)
    if not agents and pool.trouble:
        return Exclusion(pool.trouble, permanent=False)
    if not agents and not pool.can_start:
        return Exclusion("no agent of the pool runs, and none can be started from here", permanent=False)
    return None


def too_dear(spec: FunctionSpec, usd: float) -> Exclusion | None:
    """Give the exclusion of a predicted cost above the function's limit, or None."""
    limit = spec.placement.max_cost_usd
    if limit is None or usd <= limit:
        return None
    return Exclusion(f"costs {money(usd)}, above max_cost_usd {money(limit)}", permanent=True)


def _not_allowed(spec: FunctionSpec, pool: PoolSpec) -> str | None:
    rules = spec.placement
    if not _any(rules.allow.pools, pool.name):
        return "the function allows only the pools " + ", ".join(rules.allow.pools)
    if not _any(rules.allow.clouds, pool.cloud):
        return f"the function allows only the clouds {', '.join(rules.allow.clouds)}; this one is {pool.cloud}"
    if not _any(rules.allow.regions, pool.region):
        return f"the function allows only the regions {', '.join(rules.allow.regions)}; this one is {pool.region}"
    if pool.spot and rules.spot == "never":
        return "the function never runs on spot machines"
    if not pool.spot and rules.spot == "only":
        return "the function runs on spot machines only"
    return None


def _gpu(spec: FunctionSpec, pool: PoolSpec) -> str | None:
    need = spec.resources.gpu
    if need is None:
        return None
    if pool.gpu is None:
        return f"function needs a GPU with {gibibytes(need.memory)}; pool has none"
    if need.kinds and not _any(tuple(kind.upper() for kind in need.kinds), pool.gpu.kind.upper()):
        return f"the function needs a GPU of kind {', '.join(need.kinds)}; pool has {pool.gpu.kind}"
    if need.memory > pool.gpu.memory:
        return f"function needs a GPU with {gibibytes(need.memory)}; pool's have {gibibytes(pool.gpu.memory)}"
    return None


def _any(patterns: tuple[str, ...], value: str) -> bool:
    return not patterns or any(fnmatchcase(value, pattern) for pattern in patterns)
