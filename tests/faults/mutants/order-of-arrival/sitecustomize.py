"""The planner takes agents in the order in which they are told to it."""

from patching import after_import


def change(module):
    module.sorted = lambda things, key=None, reverse=False: list(things)


after_import("tidemill_placement.core.hosts", change)
