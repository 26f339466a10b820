"""A publication that its agent began, and did not end, is nobody's business."""

from patching import after_import, swap


def change(module):
    swap(module.Endings, "unpublished", lambda self, claim: True)
    swap(module, "resume", lambda *_: None)


def change_attempt(module):
    swap(module, "resume", lambda *_: None)


def change_rebuild(module):
    swap(module, "_publish", lambda *_: 0)


def change_ending(module):
    def publish(ledger, record, claim, stored, *, fresh=False):
        if stored.nonce != claim.token.nonce:
            return None
        return honest(ledger, record, claim, stored, fresh=fresh)

    honest = module._publish
    swap(module, "_publish", publish)


after_import("tidemill_placement.endings", change)
after_import("tidemill_placement.rebuild", change_rebuild)
after_import("tidemill_workers.attempt", change_attempt)
after_import("tidemill.record.ending", change_ending)
