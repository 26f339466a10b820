"""How an object becomes a job: bucket events and listings, both leading to the same submit.

    webhook ──> dialects ──┐
                           ├──> rules ──> HEAD ──> ledger.submit ──> doorbell
    reconciler (listing) ──┘

Events are hints that make it fast; the listing makes it certain. A doubled event, or an event and a listing, give the
same identity and so the same job.
"""
