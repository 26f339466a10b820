"""A doorbell that was lost is not rung again."""

from patching import after_import, replace_in_script


def change(module):
    replace_in_script(module, "sweep", "ring[#ring + 1] = agent", "")


after_import("tidemill.ledger.scripting", change)
