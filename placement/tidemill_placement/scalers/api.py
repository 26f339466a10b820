"""What placement asks of a scaler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from tidemill.models import PoolSpec


class ScalerError(Exception):
    """The place where agents run does not answer, or refuses. The sentence is shown to people."""


@dataclass(frozen=True, slots=True)
class AgentState:
    """One agent as the place where it runs sees it. `since` in seconds since 1970 (UTC); `reason` for people.

    `failed`: it ended by itself with an error.
    """

    name: str
    state: Literal["starting", "running", "stopping", "ended"]
    since: float = 0.0
    reason: str = ""
    failed: bool = False


class Scaler(Protocol):
    """Starts and stops agents by name. All calls may be repeated and return soon; they raise `ScalerError`."""

    def serves(self, pool: PoolSpec) -> bool:
        """Whether agents of this pool can be started here."""

    def observe(self, pool: PoolSpec) -> Sequence[AgentState]:
        """Give the agents of a pool, also those that ended a while ago."""

    def start(self, pool: PoolSpec, agent: str) -> None: ...

    def stop(self, agent: str) -> None:
        """End an agent, with the grace that its work needs. One that is not there is fine."""
