"""The planner reads the function of waiting jobs, and ends its turn at one that cannot be read."""

from patching import after_import, swap


def change(module):
    def end_deleted(self, queue):
        self._record.get_function(queue.function)
        honest(self, queue)

    honest = swap(module.Planner, "_end_deleted", end_deleted)


after_import("tidemill_placement.planner", change)
