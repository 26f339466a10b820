"""Agents: what they say of themselves, and what placement tells them."""

from __future__ import annotations

import json
from collections.abc import Mapping

from tidemill.ledger import wire
from tidemill.ledger.api import START_FAILURES_S, AgentReport, HeartbeatReply, StartFailure
from tidemill.ledger.connection import Arg, Connection
from tidemill.models import JobError, Placement


class AgentCalls:
    """Heartbeats, wanted runners, grants, start failures."""

    _connection: Connection

    def heartbeat(self, report: AgentReport) -> HeartbeatReply:
        args = (report.name, report.pool, report.state, wire.report_text(report))
        wanted, drain = self._connection.run("heartbeat", *args)
        return HeartbeatReply(json.loads(wanted) if wanted else {}, bool(drain), told=bool(wanted))

    def agents(self) -> list[AgentReport]:
        return [
            wire.read_report(text, seen, released, running)
            for _, seen, text, released, running in self._connection.run("agents")
        ]

    def set_wanted(self, agent: str, wanted: Mapping[str, int], *, fence: int | None = None) -> bool:
        return bool(self._connection.run("set_wanted", agent, wire.dumps(dict(wanted)), wire.fence_arg(fence)))

    def set_grants(
        self,
        function: str,
        grants: Mapping[str, int],
        placement: Placement | None = None,
        *,
        fence: int | None = None,
    ) -> bool:
        args: list[Arg] = [function, wire.dumps(wire.plain(placement)) if placement else "", wire.fence_arg(fence)]
        for agent, number in grants.items():
            args += (agent, number)
        return bool(self._connection.run("set_grants", *args))

    def set_scaling(self, numbers: Mapping[str, int], *, fence: int | None = None) -> bool:
        return bool(self._connection.run("set_scaling", wire.dumps(dict(numbers)), wire.fence_arg(fence)))

    def scaling(self) -> dict[str, int]:
        text = self._connection.command("GET", self._connection.keys.one("scaling"))
        return {name: int(number) for name, number in json.loads(text or "{}").items()}

    def start_failed(self, function: str, revision: str, error: JobError, permanent: bool) -> int:
        life = wire.micros(START_FAILURES_S)
        args = (f"{function}@{revision}", wire.dumps(wire.plain(error)), int(permanent), life)
        return int(self._connection.run("start_failed", *args, repeat=False))

    def start_succeeded(self, function: str, revision: str) -> None:
        self._connection.run("start_succeeded", f"{function}@{revision}")

    def start_failures(self) -> list[StartFailure]:
        keys = self._connection.keys
        hashes = [("HGETALL", keys.one(shape)) for shape in ("failure", "failures", "failed_at")]
        clock, errors, numbers, times = self._connection.together(("TIME",), *hashes)
        oldest = clock[0] * 1_000_000 + clock[1] - wire.micros(START_FAILURES_S)
        found = []
        for name, text in sorted(errors.items()):
            if int(times.get(name, 0)) < oldest:
                continue
            function, _, revision = name.rpartition("@")
            error = JobError.model_validate_json(text)
            found.append(StartFailure(function, revision, int(numbers.get(name, 0)), error))
        return found
