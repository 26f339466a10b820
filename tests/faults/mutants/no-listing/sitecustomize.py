"""Nobody lists the buckets: what no event tells of is never found."""

from patching import after_import, swap


def change(module):
    swap(module.Reconciler, "turn", lambda self: 60.0)


after_import("tidemill_gateway.intake.reconciler", change)
