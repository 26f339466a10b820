"""The history of a job does not say why it was given back."""

from patching import after_import, replace_in_script


def change(module):
    replace_in_script(module, "give_back", 'remember(id, "given_back", attempt, agent, detail)', "")


after_import("tidemill.ledger.scripting", change)
