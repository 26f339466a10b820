"""A leader that was replaced writes functions and pools into the ledger."""

from patching import after_import, replace_in_script


def change(module):
    replace_in_script(module, "mirror", "if deposed(ARGV[4]) then return 0 end", "")


after_import("tidemill.ledger.scripting", change)
