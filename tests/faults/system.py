"""The real system under the lab: `tidemill up` on the lab's own servers, with a proxy on every line where wanted."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import psutil
import yaml

from tests.faults.events import EventProxy
from tests.faults.schedule import LINES
from tests.faults.servers import Redis, Server, Store
from tests.faults.toxiproxy import Toxiproxy
from tests.support.disk import CannotMount, Disk, mount
from tidemill.ledger import connect
from tidemill.local.commands import status
from tidemill.local.control import Control
from tidemill.local.errors import LocalError
from tidemill.local.ports import LOOPBACK, Reservation
from tidemill.local.ready import NotReady
from tidemill.local.seaweed import Webhook
from tidemill.local.spawn import spawn
from tidemill.local.state import StateDir
from tidemill.record import Record
from tidemill.settings import StoreSettings
from tidemill.store import open_store

HERE = Path(__file__).parent
LEASE_S = 4.0
SWEEP_S = 1.0
_START_S = 90.0
_DISKS = {"redis": "redis", "store": "store", "agent": "tmp"}  # whose disk is mounted where
_SKEW_S = {"near": 3 * 3600.0, "far": -5 * 3600.0}


class System:
    """Everything of one run, below `folder`. From the main thread; `close` ends all of it."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        proxied: bool = False,
        skewed: bool = False,
        disks: bool = False,
        sitecustomize: Path | None = None,
    ) -> None:
        self.folder = folder
        self.seed = seed
        self.disks: dict[str, Disk] = _mount(folder) if disks else {}
        self.rules = folder / "failpoints"
        self.tmp = folder / _DISKS["agent"]
        self._ports = Reservation()
        self._state = StateDir(folder / "state")
        self._state.path.mkdir(mode=0o700, parents=True)
        secrets = self._state.credentials()
        with Reservation() as gateway:  # to be taken by `up` itself
            self._gateway_port = gateway.take()
        hook = f"http://{LOOPBACK}:{self._gateway_port}/hooks/s3/local"
        self.events = EventProxy(self._ports.take(), hook, secrets.hook_secret.get_secret_value(), seed)
        self.redis = Redis(folder / "redis", self._ports, secrets.redis_password.get_secret_value())
        webhook = Webhook(self.events.url, secrets.hook_secret.get_secret_value())
        self._access_key, self._secret_key = secrets.access_key, secrets.secret_key.get_secret_value()
        self.store = Store(folder / "store", self._ports, self._access_key, self._secret_key, webhook)
        self.proxy = Toxiproxy(folder / "proxy", self._ports.take()) if proxied else None
        self._lines = {line: (self._ports.take(), self._ports.take()) for line in LINES} if proxied else {}
        self._skewed = skewed
        self._sitecustomize = sitecustomize
        self._password = secrets.redis_password.get_secret_value()
        self._up: subprocess.Popen[bytes] | None = None
        with Reservation() as second:
            self.urls = [f"http://{LOOPBACK}:{port}" for port in (self._gateway_port, second.take())]
        self.twins: dict[str, Server | None] = {}
        self._argv: list[str] = []
        self._down = False
        self.token = secrets.token.get_secret_value()
        # The lab's own way in passes no proxy.
        self.ledger = connect(self.redis.url)
        self.settings = StoreSettings(
            endpoint=f"http://{LOOPBACK}:{self.store.port}", access_key=self._access_key, secret_key=secrets.secret_key
        )
        self.record = Record(open_store(self.settings))

    # -- life ----------------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Start everything, and wait until an API call would be accepted."""
        self.redis.start()
        self.store.start()
        self.events.start()
        if self.proxy is not None:
            self.proxy.start()
            for line, (redis_port, store_port) in self._lines.items():
                self.proxy.add(f"redis-{line}", redis_port, self.redis.port)
                self.proxy.add(f"store-{line}", store_port, self.store.port)
        functions = self._functions()
        pools = self.folder / "pools.yaml"
        pools.write_text(yaml.safe_dump({"pools": [self._pool("near", 2, 0.2), self._pool("far", 2, 0.1)]}))
        argv = [sys.executable, "-P", "-m", "tidemill", "up", "--state-dir", str(self._state.path)]
        argv += ["--redis", self._redis_url("control"), "--store", self._store_url("control", secret=True)]
        argv += ["--port", str(self._gateway_port), "--pools", str(pools), "--functions", str(functions)]
        self._argv = argv
        self.go_up()
        self.wait_ready()
        for name in ("gateway", "placement"):
            (self.folder / f"second-{name}").mkdir()
            self.twins[name] = None
        self.revive()

    def go_up(self) -> None:
        """Start `tidemill up`, unless it runs, and do not wait."""
        self._down = False
        if self._up is None or self._up.poll() is not None:
            self._kill_twins()
            with (self.folder / "up.log").open("ab") as output:
                self._up = spawn(self._argv, env=self._environment(), cwd=self.folder, output=output)

    def go_down(self) -> None:
        """SIGKILL for all of it, save the servers."""
        self._down = True
        if self._up is not None and self._up.poll() is None:
            self._up.kill()
            self._up.wait()
        self._kill_twins()

    def _kill_twins(self) -> None:
        """They ask for agents at the socket of the `up` that they were made after, and go with it as its own do."""
        for twin in self.twins.values():
            if twin is not None:
                twin.kill()

    def wait_ready(self) -> None:
        """Wait until everything of `up` runs, and knows the functions and pools. Raises `NotReady`."""
        give_up = time.monotonic() + _START_S
        while not self._ready():
            if time.monotonic() > give_up:
                raise NotReady(f"the system is not ready; see {self.folder}/up.log and state/logs")
            self.go_up()  # it gives up when a server is away at its start, as it should
            time.sleep(0.1)

    def flower_rows(self) -> dict[str, str]:
        """Flower's state of each job; empty while it does not answer."""
        try:
            answer = httpx.get(f"{self._state.runtime()['flower']}/api/tasks", timeout=10, trust_env=False)
            return {job_id: row["state"] for job_id, row in answer.raise_for_status().json().items()}
        except (httpx.HTTPError, LocalError):
            return {}

    def revive(self) -> None:
        """Start a second gateway and a second placement service, with the settings of the first ones, where none runs:
        `up` starts the first ones again, the lab these, and `up` itself where it gave up at its start."""
        if not self._down:
            self.go_up()
        for name, twin in self.twins.items():
            if twin is not None and twin.pid is not None:
                continue
            try:
                env = psutil.Process(self._services(name)[0]).environ()
            except (LocalError, IndexError, psutil.Error):
                continue  # the first one is away, too: later
            if name == "gateway":
                env["TIDEMILL_GATEWAY__PORT"] = self.urls[1].rpartition(":")[2]
            argv = [sys.executable, "-P", "-m", "tidemill", name]
            self.twins[name] = Server(f"second {name}", argv, env, self.folder / f"second-{name}", lambda: None)
            self.twins[name].begin()

    def close(self) -> list[str]:
        """End everything. Gives processes that outlived it, which is a fault."""
        left: list[str] = []
        self._kill_twins()
        family: list[psutil.Process] = []
        if self._up is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                family = psutil.Process(self._up.pid).children(recursive=True)
            if self._up.poll() is None:
                self._up.send_signal(signal.SIGTERM)
                try:
                    self._up.wait(40)
                except subprocess.TimeoutExpired:
                    self._up.kill()
                    self._up.wait()
                    left.append("tidemill up did not end within 40 s")
            _, alive = psutil.wait_procs(family, timeout=3)
            for process in alive:
                with contextlib.suppress(psutil.NoSuchProcess):
                    left.append(f"process {process.pid} outlived the system: {' '.join(process.cmdline())[:100]}")
                    process.kill()
        self.events.close()
        self.ledger.close()
        if self.proxy is not None:
            self.proxy.close()
        self.redis.kill()
        self.store.kill()
        self.store.seaweed.remove_sockets()
        self._ports.close()
        left += [f"the folder {path.name} was left behind" for path in sorted(self.tmp.glob("tidemill-up-*"))]
        for what, disk in self.disks.items():
            log = disk.path / "log"
            if log.exists():  # worth more than the data, which goes with the disk
                shutil.copy(log, self.folder / f"{what}.log")
            disk.unmount()
        return left

    # -- processes -----------------------------------------------------------------------------------------------
    def pids(self, what: str) -> list[int]:
        """The processes of a kind, oldest first: redis, store, gateway, placement, flower, agent, runner."""
        if what in ("redis", "store"):
            pid = (self.redis if what == "redis" else self.store).pid
            return [pid] if pid is not None else []
        agents = [row["pid"] for row in self._control().list() if row["exit"] is None]
        if what == "agent":
            return agents
        if what == "runner":
            found = []
            for pid in agents:
                with contextlib.suppress(psutil.NoSuchProcess):
                    found += [child.pid for child in psutil.Process(pid).children()]
            return found
        found = self._services(what)
        twin = self.twins.get(what)
        if twin is not None and twin.pid is not None:
            found.append(twin.pid)
        return found

    def _services(self, name: str) -> list[int]:
        return [row["pid"] for row in self._control().services() if row["name"] == name and row["pid"] is not None]

    def agent_names(self) -> dict[int, str]:
        return {row["pid"]: row["name"] for row in self._control().list() if row["exit"] is None}

    def _control(self) -> Control:
        return Control(self._state.runtime()["control"])

    def _ready(self) -> bool:
        try:
            rows = status(self._state.path)["processes"]
            services = {row["name"]: row["state"] for row in rows}
            return (
                all(services.get(name) == "running" for name in ("gateway", "placement", "flower"))
                and set(self.ledger.functions()) == {"lab", "call"}
                and len(self.ledger.pools()) == 2
            )
        except (LocalError, OSError):
            return False

    # -- what they are given -------------------------------------------------------------------------------------
    def _redis_url(self, line: str) -> str:
        port = self._lines[line][0] if self._lines else self.redis.port
        return f"redis://:{self._password}@{LOOPBACK}:{port}/0"

    def _store_url(self, line: str, *, secret: bool = False) -> str:
        port = self._lines[line][1] if self._lines else self.store.port
        return (
            f"http://{quote(self._access_key)}:{quote(self._secret_key)}@{LOOPBACK}:{port}"
            if secret
            else (f"http://{LOOPBACK}:{port}")
        )

    def _pool(self, name: str, most: int, price: float) -> dict[str, Any]:
        rules = f"@{self.rules}"
        env = {
            "TIDEMILL_REDIS__URL": self._redis_url(name),
            "TIDEMILL_STORE__ENDPOINT": self._store_url(name),
            "TIDEMILL_FAILPOINTS": f"{rules},clock=skew({_SKEW_S[name]:g})" if self._skewed else rules,
        }
        agents = {"min": 1, "max": most, "start": "2s"}
        return {"name": name, "slots": 2, "price": {"usd_per_hour": price}, "agents": agents, "env": env}

    def _functions(self) -> Path:
        folder = self.folder / "functions"
        for name in ("lab", "call"):
            (folder / name).mkdir(parents=True)
            shutil.copy(HERE / "functions" / f"{name}.yaml", folder / name / "function.yaml")
            shutil.copy(HERE / "functions" / "lab.py", folder / name / "lab.py")
        return folder

    def _environment(self) -> dict[str, str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEMILL_", "AWS_"))}
        env |= {
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "TIDEMILL_AGENT__LEASE_S": f"{LEASE_S:g}",
            "TIDEMILL_AGENT__HEARTBEAT_S": "1",
            "TIDEMILL_PLACEMENT__SWEEP_S": f"{SWEEP_S:g}",
            "TIDEMILL_PLACEMENT__LEADER_TTL_S": f"{LEASE_S:g}",
            "TIDEMILL_FAILPOINTS": f"@{self.rules}",
            "TIDEMILL_FAILPOINTS_SEED": str(self.seed),
            "TMPDIR": str(self.tmp),
        }
        self.tmp.mkdir(exist_ok=True)
        if self._sitecustomize is not None:
            env["PYTHONPATH"] = f"{self._sitecustomize}:{HERE / 'mutants'}"
        return env


def _mount(folder: Path) -> dict[str, Disk]:
    """A disk each for Redis, the store, and what agents write; none where nothing can be mounted."""
    found: dict[str, Disk] = {}
    for what, name in _DISKS.items():
        (folder / name).mkdir()
        try:
            found[what] = mount(folder / name)
        except CannotMount:
            break
    return found
