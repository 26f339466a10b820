"""The fence of the leader's lease, shared by everything that acts for the leader.

A leader that was paused beyond its lease wakes up in the middle of a turn and does not know that another one leads. Its
calls carry the fence that its lease gave, and the ledger refuses them. The fence of a lost lease is kept: what is still
on its way in a thread must be refused too.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Lead:
    """`fence` is None until this process has led once; then calls are not fenced (tests, tools)."""

    fence: int | None = None
