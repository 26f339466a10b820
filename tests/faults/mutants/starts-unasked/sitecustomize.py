"""A planner starts the agents that it has decided on, whoever leads by then."""

from patching import after_import, swap


def change(module):
    def start(self, pool, count, now, leads=None):
        honest(self, pool, count, now)

    honest = swap(module.Crew, "start", start)


after_import("tidemill_placement.crew", change)
