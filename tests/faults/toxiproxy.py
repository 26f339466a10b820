"""Toxiproxy between the system and its servers: built once with Go, driven through its HTTP interface."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx

from tests.faults.servers import Server
from tidemill.local.ports import LOOPBACK
from tidemill.local.ready import NotReady

VERSION = "2.12.0"
MODULE = f"github.com/Shopify/toxiproxy/v2/cmd/server@v{VERSION}"


class ToolMissing(Exception):
    """The proxy is not built yet, and cannot be."""


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tidemill" / "tools"


def binary() -> Path:
    """The path of the server, which is built at its first use (half a minute). Raises `ToolMissing`."""
    folder = cache() / f"toxiproxy-{VERSION}"
    path = folder / "server"
    if path.exists():
        return path
    if shutil.which("go") is None:
        raise ToolMissing("connection faults need Toxiproxy, which is built with Go: install Go 1.23 or newer")
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["go", "install", MODULE],
        env={**os.environ, "GOBIN": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ToolMissing(f"go install {MODULE}: {done.stderr[-500:]}")
    return path


class Toxiproxy(Server):
    """One proxy server; each proxy in it stands for one line between somebody and a server."""

    def __init__(self, folder: Path, port: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._http = httpx.Client(base_url=f"http://{LOOPBACK}:{port}", timeout=5, trust_env=False)
        argv = [str(binary()), "-host", LOOPBACK, "-port", str(port)]
        super().__init__("toxiproxy", argv, {}, folder, self._check)

    def add(self, name: str, port: int, upstream: int) -> None:
        """Listen on `port` and pass everything on to `upstream`."""
        self._ask(
            "POST", "/proxies", {"name": name, "listen": f"{LOOPBACK}:{port}", "upstream": f"{LOOPBACK}:{upstream}"}
        )

    def break_(self, name: str, what: str, facts: dict[str, Any]) -> None:
        """Begin a fault on a line (`schedule.KINDS["connection"]`)."""
        if what == "cut":  # refused from now on, and what was open is closed
            self._ask("POST", f"/proxies/{name}", {"enabled": False})
            return
        kind, attributes = {
            "reset": ("reset_peer", {"timeout": 0}),
            "latency": ("latency", {"latency": facts.get("ms", 0), "jitter": facts.get("ms", 0) // 2}),
            "throttle": ("bandwidth", {"rate": facts.get("kb_per_s", 0)}),
            "silence": ("timeout", {"timeout": 0}),  # open, and nothing comes through any more
            "slice": ("slicer", {"average_size": 7, "size_variation": 5, "delay": 200}),
            "tear": ("limit_data", {"bytes": facts.get("after_bytes", 0)}),  # closed in the middle of an answer
        }[what]
        streams = ("upstream", "downstream") if what == "silence" else ("downstream",)
        for stream in streams:
            toxic = {"name": f"{what}-{stream}", "type": kind, "stream": stream, "attributes": attributes}
            self._ask("POST", f"/proxies/{name}/toxics", toxic, accept=(200, 409))

    def mend(self, name: str) -> None:
        """End all faults of a line."""
        for toxic in self._ask("GET", f"/proxies/{name}/toxics", None):
            self._ask("DELETE", f"/proxies/{name}/toxics/{toxic['name']}", None, accept=(204, 404))
        self._ask("POST", f"/proxies/{name}", {"enabled": True})

    def close(self) -> None:
        self._http.close()
        self.kill()

    def _ask(self, method: str, path: str, body: Any, accept: tuple[int, ...] = (200, 201)) -> Any:
        answer = self._http.request(method, path, json=body)
        if answer.status_code not in accept:
            raise RuntimeError(f"toxiproxy: {method} {path}: {answer.status_code} {answer.text}")
        with contextlib.suppress(ValueError):
            return answer.json()
        return None

    def _check(self) -> None:
        try:
            self._ask("GET", "/version", None)
        except httpx.HTTPError as error:
            raise NotReady(str(error)) from error
