"""The way of a job: from submit to its end. Each call is one script."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from tidemill.ledger import wire
from tidemill.ledger.api import Claim, Ended, NewJob, Renewal, Submitted, Swept, Token
from tidemill.ledger.connection import Connection
from tidemill.models import JobError, JobState, Manifest, Placement, settled_place

_UNCLAIMED_S = 2.0  # a doorbell was lost when a released job waits longer
_LOG_LIFE_S = 3600
_CHUNK = 500


class JobCalls:
    """Submit, place, claim, end, sweep."""

    _connection: Connection

    def submit(self, job: NewJob, *, version: int | None = None, bell: str = "") -> Submitted:
        shard, digest = settled_place(job.id)
        reply = self._connection.run(
            "submit",
            job.id,
            job.generation,
            job.function,
            wire.spec_of(job),
            job.max_attempts,
            wire.owner_arg(job.owner),
            int(job.look_first),
            wire.summary_of(job.input),
            shard,
            digest,
            "" if version is None else version,
            bell,
        )
        if not reply:
            return Submitted(job.id, False, None, job.generation, moved=True)
        created, state, generation, agent, settled = reply
        found = JobState(state) if state else None
        return Submitted(job.id, bool(created), found, int(generation), bool(settled), agent or None)

    def release(self, job_id: str, agent: str, placement: Placement, *, fence: int | None = None) -> bool:
        text = wire.dumps(wire.plain(placement))
        return bool(self._connection.run("release", job_id, agent, text, wire.fence_arg(fence)))

    def note_placement(self, job_id: str, placement: Placement, *, fence: int | None = None) -> bool:
        text = wire.dumps(wire.plain(placement))
        return bool(self._connection.run("note_placement", job_id, text, wire.fence_arg(fence)))

    def claim(self, agent: str, limit: int, lease_s: float) -> list[Claim]:
        replies = self._connection.run_again("claim", agent, limit, wire.micros(lease_s), _nonce())
        return [wire.read_claim(reply) for reply in replies]

    def seize(self, job_id: str, by: str, lease_s: float, *, fence: int | None = None) -> Claim | None:
        reply = self._connection.run("seize", job_id, by, wire.micros(lease_s), _nonce(), wire.fence_arg(fence))
        return wire.read_claim(reply) if reply else None

    def renew(self, tokens: Sequence[Token], lease_s: float) -> list[Renewal]:
        if not tokens:
            return []
        args = [part for token in tokens for part in wire.token_args(token)]
        replies = self._connection.run("renew", wire.micros(lease_s), *args)
        return [Renewal(held=reply > 0, cancel=reply == 2) for reply in replies]

    def progress(self, token: Token, done: float, total: float | None, unit: str | None) -> bool:
        text = wire.dumps({"done": done, "total": total, "unit": unit})
        return bool(self._connection.run("progress", *wire.token_args(token), text))

    def commit(self, token: Token, ended: Ended, lease_s: float) -> bool:
        return bool(self._connection.run("commit", *wire.token_args(token), wire.end_of(ended), wire.micros(lease_s)))

    def published(self, token: Token, ended: Ended) -> bool:
        code = ended.error.code if ended.error else ""
        line = wire.error_line(ended.error)
        place = settled_place(token.job_id)
        args = (ended.state, wire.end_of(ended), code, line, ended.run_s, *place, _LOG_LIFE_S)
        return bool(self._connection.run("published", *wire.token_args(token), *args))

    def relist(self, manifest: Manifest) -> bool:
        ended = Ended.of(manifest)
        reply = self._connection.run(
            "relist",
            manifest.job_id,
            manifest.generation,
            manifest.function,
            wire.spec_of(manifest),
            wire.owner_arg(manifest.owner),
            ended.state,
            wire.end_of(ended),
            ended.error.code if ended.error else "",
            wire.error_line(ended.error),
            ended.run_s,
            wire.micros(manifest.created_at),
            wire.micros(manifest.finished_at),
            "" if manifest.started_at is None else wire.micros(manifest.started_at),
            manifest.attempt,
            manifest.pool or "",
            manifest.agent or "",
            wire.dumps(wire.plain(manifest.placement)) if manifest.placement is not None else "",
            wire.summary_of(manifest.input),
            *settled_place(manifest.job_id),
            *map(wire.entry_of, manifest.history),
        )
        return bool(reply)

    def give_back(
        self, token: Token, *, delay_s: float = 0.0, count: bool = True, why: str = "", error: JobError | None = None
    ) -> bool:
        args = (wire.micros(delay_s), int(count), why, wire.error_line(error))
        return bool(self._connection.run("give_back", *wire.token_args(token), *args))

    def cancel(self, job_id: str, by: str, lease_s: float) -> tuple[JobState | None, Claim | None]:
        before, *seized = self._connection.run("cancel", job_id, by, wire.micros(lease_s), _nonce())
        return (JobState(before) if before else None), (wire.read_claim(seized[0]) if seized else None)

    def sweep(
        self,
        by: str,
        lease_s: float,
        agent_ttl_s: float,
        limit: int = 200,
        *,
        seized: int | None = None,
        fence: int | None = None,
    ) -> Swept:
        times = (wire.micros(lease_s), wire.micros(agent_ttl_s))
        hands = limit if seized is None else seized
        requeued, exhausted, unpublished, ring, dead, more = self._connection.run(
            "sweep", by, *times, limit, _nonce(), wire.micros(_UNCLAIMED_S), wire.fence_arg(fence), hands
        )
        return Swept(
            requeued=tuple(requeued),
            exhausted=tuple(wire.read_claim(reply) for reply in exhausted),
            unpublished=tuple(wire.read_claim(reply) for reply in unpublished),
            ring=tuple(ring),
            dead_agents=tuple(dead),
            more=bool(more),
        )

    def agent_gone(self, agent: str) -> int:
        total, more = 0, 1
        while more:
            found, more = self._connection.run("agent_gone", agent, _CHUNK)
            total += found
        return total

    def drain_agent(self, agent: str, *, fence: int | None = None) -> bool:
        found, more = 0, 1
        while more:
            found, more = self._connection.run("drain_agent", agent, _CHUNK, wire.fence_arg(fence))
        return bool(found >= 0)

    def expire(self, before: float, limit: int = 1000) -> int:
        return int(self._connection.run("expire", wire.micros(before), limit))


def _nonce() -> str:
    return secrets.token_hex(8)
