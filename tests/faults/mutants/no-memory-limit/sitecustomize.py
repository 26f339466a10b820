"""The planner believes that functions need no GPU memory."""

from patching import after_import, swap


def change(module):
    swap(module, "memory_of", lambda record, pool: 0)


after_import("tidemill_placement.core.rates", change)
