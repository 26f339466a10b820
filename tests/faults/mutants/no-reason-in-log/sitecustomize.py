"""The agent's log does not say why a job was given back."""

from patching import after_import


def change(module):
    module.Attempt._why = property(lambda self: "", lambda self, why: None)


after_import("tidemill_workers.attempt", change)
