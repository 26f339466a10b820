"""A retry that is sent again is another retry."""

from patching import after_import, swap


def change(module):
    swap(module.Calls, "_retried", lambda self, job, key: False)


after_import("tidemill_gateway.calls", change)
