"""A Redis that comes back empty or old is taken as it is."""

from patching import after_import, swap


def change(module):
    def keep(self):
        epoch = self._ledger.epoch()
        found = self._record.read_epoch()
        if epoch is None and found is None:
            self._ledger.begin_epoch(1, 1)
            self._write(1, 1, None)
        elif epoch is None:
            self._ledger.begin_epoch(found[0].epoch, 1)
        return epoch is None

    swap(module.EpochKeeper, "keep", keep)


after_import("tidemill_placement.epoch", change)
