"""A record that cannot be read is left out, and nobody hears of it."""

from patching import after_import, swap


def change(module):
    swap(module.Objects, "_note", lambda self, key, error: None)


after_import("tidemill.record.objects", change)
