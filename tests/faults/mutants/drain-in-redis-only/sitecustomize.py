"""That a pool drains is told to Redis alone."""

from patching import after_import, swap


def change(module):
    def drain_pool(self, name, draining):
        return next((module.PoolState(pool.spec, draining) for pool in self.pools() if pool.spec.name == name), None)

    swap(module.Record, "drain_pool", drain_pool)


after_import("tidemill.record.record", change)
