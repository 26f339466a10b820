"""The calls about what is deployed: functions, pools, agents; and uploads into buckets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tidemill.client.asking import Asker
from tidemill.client.jobs import rows
from tidemill.client.problems import problem
from tidemill.client.wire import Body, Call, Request, Response


@dataclass(frozen=True)
class CatalogueCalls:
    """Each method gives a call for a driver. Functions, pools and agents are the JSON objects of the API."""

    asker: Asker

    def functions(self) -> Call[list[dict[str, Any]]]:
        return rows((yield from self.asker.ask(Request("GET", "/api/v1/functions"))), "functions")

    def function(self, name: str) -> Call[dict[str, Any]]:
        return (yield from self._json("GET", _path("functions", name)))

    def deploy(self, folder: Path) -> Call[dict[str, Any]]:
        """Check a function's folder here, send it, and give the deployed function.

        Raises:
            InvalidSpec: with file, line, reason and remedy; from here, or from the service.
        """
        import tempfile

        from tidemill.models.archive import pack
        from tidemill.models.files import load_function

        loaded = load_function(folder)
        with tempfile.TemporaryDirectory(prefix="tidemill-deploy-") as scratch:
            archive = Path(scratch, "code.tar.gz")
            with archive.open("wb") as into:
                pack(loaded.folder, into)
            spec = loaded.spec.model_dump_json(exclude_unset=True)
            parts: tuple[tuple[str, str | Body], ...] = (
                ("spec", spec),
                ("code", Body("code.tar.gz", archive, "application/gzip")),
            )
            return (yield from self._json("PUT", _path("functions", loaded.spec.name), parts=parts, wait_s=60.0))

    def delete_function(self, name: str) -> Call[None]:
        yield from self.asker.ask(Request("DELETE", _path("functions", name)))

    def replay(
        self, name: str, prefix: str = "", failed_only: bool = False, dry_run: bool = False
    ) -> Call[dict[str, Any]]:
        """Give what a replay found and did, added up over as many requests as it takes."""
        total: dict[str, Any] = {}
        cursor: str | None = None
        while True:
            body = {"prefix": prefix, "failed_only": failed_only, "dry_run": dry_run}
            sent = body if cursor is None else {**body, "cursor": cursor}
            path = f"{_path('functions', name)}/replay"
            found = yield from self._json("POST", path, json=sent, wait_s=60.0)
            total = _added(total, found)
            cursor = found.get("cursor")
            if cursor is None:
                return total

    def pools(self) -> Call[list[dict[str, Any]]]:
        return rows((yield from self.asker.ask(Request("GET", "/api/v1/pools"))), "pools")

    def pool(self, name: str) -> Call[dict[str, Any]]:
        return (yield from self._json("GET", _path("pools", name)))

    def apply_pool(self, spec: Mapping[str, Any]) -> Call[dict[str, Any]]:
        return (yield from self._json("PUT", _path("pools", str(spec["name"])), json=dict(spec)))

    def apply_pools_file(self, path: Path) -> Call[list[dict[str, Any]]]:
        """Check a pools file here and put each pool in place."""
        from tidemill.models.files import load_pools

        applied = []
        for spec in load_pools(path):
            sent = spec.model_dump(mode="json", exclude_unset=True)
            applied.append((yield from self.apply_pool(sent)))
        return applied

    def drain_pool(self, name: str) -> Call[dict[str, Any]]:
        return (yield from self._json("POST", _path("pools", name, "drain")))

    def resume_pool(self, name: str) -> Call[dict[str, Any]]:
        return (yield from self._json("POST", _path("pools", name, "resume")))

    def delete_pool(self, name: str) -> Call[None]:
        yield from self.asker.ask(Request("DELETE", _path("pools", name)))

    def agents(self) -> Call[list[dict[str, Any]]]:
        return rows((yield from self.asker.ask(Request("GET", "/api/v1/agents"))), "agents")

    def ignored(self, limit: int) -> Call[list[dict[str, Any]]]:
        answer = yield from self.asker.ask(Request("GET", "/api/v1/ignored", query={"limit": str(limit)}))
        return rows(answer, "ignored")

    def damaged(self) -> Call[list[dict[str, Any]]]:
        answer = yield from self.asker.ask(Request("GET", "/api/v1/damaged"))
        return rows(answer, "damaged")

    def readiness(self) -> Call[dict[str, Any]]:
        """What the service says of its own dependencies, good or bad, asked once.

        Raises:
            NoAnswer: nobody is there.
            NotAllowed: the token is not accepted.
        """
        response: Response = yield Request("GET", "/readyz")
        if not response.ok and response.status != 503:
            raise problem(response)
        found: dict[str, Any] = response.json()
        return found

    def upload(
        self,
        path: Path,
        bucket: str,
        key: str,
        content_type: str | None = None,
        on_sent: Callable[[int], None] | None = None,
    ) -> Call[None]:
        """Put a file into a bucket, through a presigned address. `on_sent` hears how many bytes went out since."""
        asked = {"bucket": bucket, "key": key, "size": path.stat().st_size, "content_type": content_type}
        given = yield from self._json("POST", "/api/v1/uploads", json=asked)
        headers = {str(k): str(v) for k, v in (given.get("headers") or {}).items()}
        body = Body(key.rsplit("/", 1)[-1], path, content_type)
        put = Request(given.get("method") or "PUT", str(given["url"]), headers=headers, body=body, on_sent=on_sent)
        yield from self.asker.ask(put)

    def _json(self, method: str, path: str, **more: Any) -> Call[dict[str, Any]]:
        response = yield from self.asker.ask(Request(method, path, **more))
        found: dict[str, Any] = response.json() if response.content else {}
        return found


def _added(total: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Two answers of a replay in one: numbers and counts summed up, the newest of everything else."""
    if not total:
        return found
    added = {**total, **found, "examples": (total["examples"] + found["examples"])[:20]}
    for name in ("found", "started", "known"):
        added[name] = total[name] + found[name]
    for name in ("ignored", "refused"):
        reasons = [*total[name], *found[name]]
        added[name] = {reason: total[name].get(reason, 0) + found[name].get(reason, 0) for reason in reasons}
    return added


def _path(*parts: str) -> str:
    return "/api/v1/" + "/".join(quote(part, safe="") for part in parts)
