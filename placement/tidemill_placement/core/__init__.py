"""The placement core: what is known goes in as a `World`, what shall be done comes out as a `Plan`.

Pure functions over frozen values; the simulator and the service run the same code.
"""

from tidemill_placement.core.plan import plan
from tidemill_placement.core.predict import Estimates, Forecast
from tidemill_placement.core.world import (
    Agent,
    Grant,
    Impossible,
    Plan,
    Pool,
    Queue,
    Release,
    Rules,
    Runner,
    Task,
    Waiting,
    World,
    runner_key,
)

__all__ = [
    "Agent",
    "Estimates",
    "Forecast",
    "Grant",
    "Impossible",
    "Plan",
    "Pool",
    "Queue",
    "Release",
    "Rules",
    "Runner",
    "Task",
    "Waiting",
    "World",
    "plan",
    "runner_key",
]
