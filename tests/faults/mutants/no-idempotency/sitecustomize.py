"""A call that is sent again is another call."""

import secrets

from patching import after_import, swap


def change(module):
    honest = module.request_job_id
    swap(module, "request_job_id", lambda function, owner, key: honest(function, owner, key + secrets.token_hex(8)))


after_import("tidemill_gateway.calls", change)
