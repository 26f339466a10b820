"""A runner gets the agent's own environment, with all that stands in it."""

import os

from patching import after_import, swap


def change(module):
    honest = module.Runner._environment
    swap(module.Runner, "_environment", lambda self, work: {**os.environ, **honest(self, work)})


after_import("tidemill_workers.agent.runners", change)
