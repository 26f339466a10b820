"""The ledger takes the word of a leader that has been replaced."""

from patching import after_import, replace_in_script


def change(module):
    replace_in_script(module, "common", 'return fence ~= "" and', "return false and")


after_import("tidemill.ledger.scripting", change)
