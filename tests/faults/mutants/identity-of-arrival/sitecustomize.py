"""Each arrival of an object is a job of its own."""

import secrets

from patching import after_import, swap


def change(module):
    honest = module.object_job_id
    swap(module, "object_job_id", lambda *facts: honest(*facts[:-1], secrets.randbelow(2**31)))


after_import("tidemill_gateway.intake.submit", change)
