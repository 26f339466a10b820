"""Every key of the ledger, once. Python asks `Keys`; the Lua scripts get the same shapes as a table `KEY`, made here.

A shape that ends in `:` takes a name after it (`job:` + job id). All stand under the installation's prefix. One Redis,
no cluster: a script builds the keys of the jobs that it finds from the prefix, which it gets as KEYS[1].
"""

from __future__ import annotations

import re

SHAPES: dict[str, str] = {
    # the ledger's life
    "epoch": "epoch",  # hash: epoch, sequence
    "lock": "lock:",  # string per name: holder of a leader lease, with its time to live
    "fence": "fence:",  # string per name: the last fence given out
    # jobs
    "job": "job:",  # hash per job id, fields in wire.py
    "history": "history:",  # list per job id: what happened beside the plain way, newest 30, JSON
    "log": "log:",  # stream per job id: the live log
    "jobs": "jobs",  # zset: job id by creation (us): the order of listings
    "open": "jobs:open",  # the same, of those that are not terminal: so that a few are found among many finished ones
    "active": "jobs:active",  # the same, of released, running and committed ones
    "unsuccessful": "jobs:unsuccessful",  # the same, of failed and cancelled ones
    "queue": "queue:",  # zset per function: job id by the time (us) from which it may run
    "released": "released:",  # zset per agent: job id by release (us)
    "unclaimed": "unclaimed",  # zset: agent by release of its oldest unclaimed job, or by the last ring (us)
    "leases": "leases",  # zset: job id by end of its lease (us): running and committed jobs
    "running": "running:",  # set per agent: job ids that run there
    "publishing": "publishing:",  # set per agent: job ids committed there and not yet published
    "finished": "finished",  # zset: job id by its end (us)
    "counts": "counts",  # hash: `function:state` -> number of jobs
    "settled": "settled:",  # integer set per shard: digests of finished identities
    "transitions": "transitions",  # stream: one line per change of a state
    # agents and what placement tells them
    "agents": "agents",  # zset: agent by last heartbeat (us)
    "agent": "agent:",  # hash per agent: report, pool, state, drain, wanted
    "grants": "grants:",  # hash per function: agent -> number; the empty field holds the placement
    "scaling": "scaling",  # string: JSON, `pool` or `pool/function` -> number
    # mirrors of the platform bucket
    "functions": "functions",  # hash: name -> JSON
    "pools": "pools",  # hash: name -> JSON
    "draining": "draining",  # set: pools that take no more work
    "version": "version",  # counter: grows with each change of a function or pool
    "failures": "failures",  # hash: `function@revision` -> permanent start failures
    "failure": "failure",  # hash: `function@revision` -> last error, JSON
    "failed_at": "failed_at",  # hash: `function@revision` -> time of the last failure (us)
    # notes for operators
    "ignored": "ignored",  # hash: `bucket/key` -> JSON of reason and time
    "ignored_at": "ignored_at",  # zset: `bucket/key` by time (us)
    "junk": "junk",  # list: JSON, newest first
}

_USED = re.compile(r"\bKEY\.(\w+)")


class Keys:
    """The keys of one installation: `keys.one("epoch")`, `keys.of("job", job_id)`."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def one(self, shape: str) -> str:
        """The key of a shape that stands alone."""
        return self.prefix + SHAPES[shape]

    def of(self, shape: str, name: str | int) -> str:
        """The key of a shape that takes a name."""
        return f"{self.prefix}{SHAPES[shape]}{name}"


def lua_table(source: str) -> str:
    """Give the Lua line that defines `KEY` with just the shapes that `source` uses.

    Raises:
        KeyError: a script uses a shape that is not in `SHAPES`.
    """
    used = sorted(set(_USED.findall(source)))
    entries = ", ".join(f'{name} = KEYS[1] .. "{SHAPES[name]}"' for name in used)
    return f"local KEY = {{{entries}}}"
