"""The order in which waiting jobs are judged: owners take turns, each owner's jobs by age."""

from __future__ import annotations

from collections.abc import Iterable

from tidemill_placement.core.world import Waiting


def fair_order(jobs: Iterable[Waiting]) -> list[Waiting]:
    """Give the jobs so that no owner waits behind another's flood. The owner of the oldest job comes first."""
    owners: dict[str, int] = {}
    turns: list[tuple[int, float, str, Waiting]] = []
    for job in sorted(jobs, key=lambda job: (job.created_at, job.id)):
        turn = owners.get(job.owner, 0)
        owners[job.owner] = turn + 1
        turns.append((turn, job.created_at, job.id, job))
    turns.sort(key=lambda entry: entry[:3])
    return [entry[3] for entry in turns]
