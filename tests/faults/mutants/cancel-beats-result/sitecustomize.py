"""A rebuild that ends a job as cancelled publishes that, whatever was committed before."""

from patching import after_import, swap


class Sure:
    """A record whose every commit seems to be the first one."""

    def __init__(self, record):
        self._record = record

    def __getattr__(self, name):
        return getattr(self._record, name)

    def commit(self, commit):
        self._record.commit(commit)
        return True, commit


def change(module):
    honest = swap(module, "_cancel", lambda ledger, record, done: honest(ledger, Sure(record), done))


after_import("tidemill_placement.rebuild", change)
