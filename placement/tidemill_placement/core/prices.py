"""What an agent costs: the pool's own price, or the catalogue's for its kind of GPU."""

from __future__ import annotations

from tidemill.models import PoolSpec

# US dollars for one GPU's hour, on demand, the lowest of the large clouds' list prices (September 2026).
CATALOGUE = {"T4": 0.51, "L4": 0.708, "A10": 1.006, "A10G": 1.006, "A100": 3.67, "H100": 6.88}


def usd_per_hour(pool: PoolSpec) -> float | None:
    """Give the price of one agent's hour, None when the catalogue does not know it."""
    if pool.price != "catalogue":
        return pool.price.usd_per_hour
    return CATALOGUE.get(pool.gpu.kind.upper()) if pool.gpu else None


def launch_usd(pool: PoolSpec, start_s: float, idle_s: float) -> float:
    """Give what an agent costs beside the work it does: its start and the idle time at its end, or the minimum."""
    price = usd_per_hour(pool) or 0.0
    minimum = 0.0 if pool.price == "catalogue" else pool.price.minimum
    return price / 3600 * max(start_s + idle_s, minimum)
