"""A rebuild does not say under which lease it writes."""

from patching import after_import, swap


def change(module):
    pools = swap(module, "_pools", lambda ledger, record, fence: pools(ledger, record, None))
    functions = swap(module, "mirror_functions", lambda ledger, record, fence: functions(ledger, record, None))


after_import("tidemill_placement.rebuild", change)
