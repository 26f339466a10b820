"""A result may go round as often as it likes."""

from patching import after_import, swap


def change(module):
    swap(module, "ignored_hop", lambda hop, max_hops: None)


after_import("tidemill_gateway.intake.rules", change)
