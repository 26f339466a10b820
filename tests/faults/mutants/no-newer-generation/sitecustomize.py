"""A job that the ledger knows is shown as the ledger knows it."""

from patching import after_import, swap


def change(module):
    swap(module.Lookup, "_newer", lambda self, job: None)


after_import("tidemill_gateway.lookup", change)
