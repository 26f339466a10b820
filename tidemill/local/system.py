"""The system of one machine: which processes there are, with which addresses and secrets, and its whole life.

    valkey ──┬── gateway ──┐
    seaweed ─┘             ├── (agents, started by placement through the control socket)
             ├── placement ┘
             └── flower

The list of services is a function of the addresses (`default_services`), so that tests and later rooms can bring their
own. `LocalSystem.run` is the life of `tidemill up`: lock, start, ready, wait for a signal, stop.
"""

import asyncio
import contextlib
import dataclasses
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tidemill.local.control import ControlServer, remove_leftover
from tidemill.local.errors import LocalError
from tidemill.local.ports import LOOPBACK, NoFreePort, Reservation
from tidemill.local.ready import http_check
from tidemill.local.seaweed import REGION, Ports, Seaweed, Webhook
from tidemill.local.state import Credentials, StateDir, default_state_dir, remove_profile, write_profile
from tidemill.local.supervisor import Event, Service, Supervisor
from tidemill.local.valkey import Valkey

BUCKET = "tidemill"
_ONCE = frozenset({"TIDEMILL_FUNCTIONS_DIR", "TIDEMILL_POOLS_FILE"})  # a crash undoes no deploy that came later


@dataclass(frozen=True)
class Addresses:
    """Where everything is, and the secrets to get in."""

    redis_url: str = field(repr=False)
    store_endpoint: str
    store_region: str
    access_key: str
    secret_key: str = field(repr=False)
    gateway_port: int
    flower_port: int
    token: str = field(repr=False)
    hook_secret: str = field(repr=False)
    flower_user: str
    flower_password: str = field(repr=False)
    state_dir: Path
    control: str = field(repr=False)

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.gateway_port}"

    @property
    def flower_url(self) -> str:
        """With user and password, so that it opens in a browser and answers a script as it stands."""
        return f"http://{self.flower_user}:{self.flower_password}@{LOOPBACK}:{self.flower_port}"

    def public(self) -> dict[str, Any]:
        """What `tidemill status --json` says, without the processes (contract.md)."""
        return {
            "url": self.url,
            "token": self.token,
            "redis": self.redis_url,
            "flower": self.flower_url,
            "store": {
                "endpoint": self.store_endpoint,
                "access_key": self.access_key,
                "secret_key": self.secret_key,
                "region": self.store_region,
            },
        }


@dataclass(frozen=True)
class Options:
    """What the person chose. Without `events` the embedded store sends none, and listing alone finds objects.

    `store_url`: `http://ACCESS:SECRET@host:port`, with `?region=` where it matters."""

    state_dir: Path = field(default_factory=default_state_dir)
    port: int | None = None
    pools_file: Path | None = None
    functions_dir: Path | None = None
    events: bool = True
    redis_url: str | None = None
    store_url: str | None = None
    extra_env: Mapping[str, str] = field(default_factory=dict)


Compose = Callable[[Addresses, Mapping[str, str]], Sequence[Service]]


def default_services(addresses: Addresses, env: Mapping[str, str]) -> list[Service]:
    """Gateway, placement and Flower; `env` is the settings that all of them get."""
    # -P and a folder of ours: no module that lies where `up` was typed may take the place of an installed one.
    python = sys.executable
    flower_env = {
        **env,
        # Never in the command line, which everybody may read.
        "FLOWER_BASIC_AUTH": f"{addresses.flower_user}:{addresses.flower_password}",
    }
    flower = ["flower", f"--address={LOOPBACK}", f"--port={addresses.flower_port}"]
    flower += ["--enable_events=False", "--max_tasks=20000", "--purge_offline_workers=60"]
    return [
        Service(
            "gateway",
            [python, "-P", "-m", "tidemill.cli", "gateway"],
            env,
            cwd=addresses.state_dir,
            ready=http_check(addresses.gateway_port, "/readyz", headers={"Authorization": f"Bearer {addresses.token}"}),
            once=_ONCE,
        ),
        Service(
            "placement", [python, "-P", "-m", "tidemill.cli", "placement"], env, cwd=addresses.state_dir, once=_ONCE
        ),
        Service(
            "flower",
            [python, "-P", "-m", "celery", "-A", "tidemill.doorbell:app", *flower],
            flower_env,
            cwd=addresses.state_dir,
            ready=http_check(addresses.flower_port, "/healthcheck"),
            stop_s=2.0,
        ),
    ]


class LocalSystem:
    """One `tidemill up`."""

    def __init__(
        self,
        options: Options,
        *,
        compose: Compose = default_services,
        tell: Callable[[Event], None] = lambda event: None,
    ) -> None:
        self._options = options
        self._compose = compose
        self._tell = tell
        self._state = StateDir(options.state_dir)
        self._ports = Reservation()
        self._pools_file = options.pools_file

    def run(self, on_ready: Callable[[dict[str, Any]], None] = lambda status: None) -> None:
        """Starts everything, calls `on_ready` with the addresses, and returns after a signal, when all has ended.

        SIGTERM, SIGINT and SIGHUP end it; a second one ends it at once. From the main thread only.
        Raises `AlreadyRunning`, `StartFailed`, `LocalError`; whatever was started has ended by then.
        """
        self._state.acquire()
        try:
            asyncio.run(self._live(on_ready))
        finally:
            self._ports.close()
            self._state.release()

    async def _live(self, on_ready: Callable[[dict[str, Any]], None]) -> None:
        if (before := self._state.last_runtime()) is not None:
            remove_leftover(str(before.get("control", "")))
        supervisor = Supervisor(self._state.logs, self._tell)
        control = ControlServer(supervisor)
        asked_to_end = self._on_signals(supervisor)
        addresses: Addresses | None = None
        try:
            addresses, services = self._plan(control.address)
            await control.open()
            self._state.write_runtime(
                {"pid": os.getpid(), "started_at": time.time(), "control": control.address, **addresses.public()}
            )
            if await _first(supervisor.start(services), asked_to_end.wait()):
                write_profile(addresses.url, addresses.token)
                on_ready(addresses.public())
                await _first(supervisor.watch(), asked_to_end.wait())
        finally:
            await control.close()
            await supervisor.stop()
            if addresses is not None:
                remove_profile(addresses.url, addresses.token)

    def _on_signals(self, supervisor: Supervisor) -> asyncio.Event:
        asked = asyncio.Event()

        def signalled() -> None:
            if asked.is_set():
                supervisor.kill()
            asked.set()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, signalled)
        return asked

    def _plan(self, control: str) -> tuple[Addresses, list[Service]]:
        options, state = self._options, self._state
        self._pools_file = options.pools_file or state.first_pools()
        secrets = state.credentials()
        wanted = state.ports()
        ports = {"gateway": self._gateway_port(wanted.get("gateway")), "flower": self._ports.take(wanted.get("flower"))}
        servers: list[Service] = []

        redis_url = options.redis_url
        if redis_url is None:
            ports["redis"] = self._ports.take(wanted.get("redis"))
            valkey = Valkey(state.path / "valkey", ports["redis"], secrets.redis_password.get_secret_value())
            redis_url = valkey.url
            servers.append(_valkey_service(valkey))

        if options.store_url is None:
            store = Ports.take(self._ports, wanted)
            ports |= vars(store)
            url = f"http://{LOOPBACK}:{ports['gateway']}/hooks/s3/local"
            secret = secrets.hook_secret.get_secret_value()
            hook = Webhook(url, secret, quiet_bucket=BUCKET) if options.events else None
            secret_key = secrets.secret_key.get_secret_value()
            seaweed = Seaweed(state.path / "seaweed", store, secrets.access_key, secret_key, hook)
            servers.append(_seaweed_service(seaweed))
            where = (seaweed.endpoint, seaweed.region, seaweed.access_key, seaweed.secret_key)
        else:
            where = parse_store_url(options.store_url)

        state.keep_ports(ports)
        addresses = _addresses(secrets, redis_url, where, ports, state.path, control)
        needs = tuple(server.name for server in servers)
        composed = self._compose(addresses, self._env(addresses))
        own = {service.name for service in composed}
        services = [_after(service, needs if not set(service.needs) & own else ()) for service in composed]
        return addresses, servers + services

    def _gateway_port(self, before: int | None) -> int:
        if self._options.port is None:
            return self._ports.take(before)
        try:
            return self._ports.take_exactly(self._options.port)
        except NoFreePort as error:
            raise LocalError(str(error), hint="Choose another with --port, or leave it out.") from error

    def _env(self, addresses: Addresses) -> dict[str, str]:
        """The whole environment of a service: that of the person, and the settings of this system."""
        options = self._options
        settings = {
            "REDIS__URL": addresses.redis_url,
            "STORE__ENDPOINT": addresses.store_endpoint,
            "STORE__ACCESS_KEY": addresses.access_key,
            "STORE__SECRET_KEY": addresses.secret_key,
            "STORE__REGION": addresses.store_region,
            "STORE__BUCKET": BUCKET,
            "GATEWAY__HOST": LOOPBACK,
            "GATEWAY__PORT": str(addresses.gateway_port),
            "GATEWAY__TOKEN": addresses.token,
            "GATEWAY__HOOK_SECRET": addresses.hook_secret,
            "FLOWER__URL": f"http://{LOOPBACK}:{addresses.flower_port}",
            "FLOWER__PORT": str(addresses.flower_port),
            "FLOWER__USER": addresses.flower_user,
            "FLOWER__PASSWORD": addresses.flower_password,
            "AGENT__DRAIN_S": "3",  # who ends `up` waits for it; what still runs is given back
            "LOCAL__CONTROL": addresses.control,
            "LOCAL__STATE_DIR": str(addresses.state_dir),
        }
        if options.store_url and (secret := os.environ.get("TIDEMILL_GATEWAY__HOOK_SECRET")):
            settings["GATEWAY__HOOK_SECRET"] = secret  # somebody else's store knows it
        if (options.store_url or not options.events) and not os.environ.get("TIDEMILL_INTAKE__NOTIFY_ARN"):
            settings["INTAKE__CANARY_S"] = "0"  # nobody sends events, so none are missed
        if self._pools_file is not None:
            settings["POOLS_FILE"] = str(self._pools_file.absolute())
        if options.functions_dir is not None:
            settings["FUNCTIONS_DIR"] = str(options.functions_dir.absolute())
        # A proxy of the person's is not for loopback; AWS settings of theirs are for another store.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        return {
            **inherited,
            "NO_PROXY": ",".join(filter(None, [os.environ.get("NO_PROXY"), LOOPBACK, "localhost"])),
            "PYTHONUNBUFFERED": "1",
            **{f"TIDEMILL_{name}": value for name, value in settings.items()},
            **options.extra_env,
        }


def parse_store_url(url: str) -> tuple[str, str, str, str]:
    """(endpoint, region, access key, secret key) of `http[s]://ACCESS:SECRET@host[:port][?region=R]`.

    Without keys, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are taken. Raises `LocalError`.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
        raise LocalError(
            f"not the address of a store: {parts.scheme}://{parts.hostname or ''}{parts.path}", hint=_STORE
        )
    access_key = unquote(parts.username or "") or os.environ.get("AWS_ACCESS_KEY_ID", "")
    secret_key = unquote(parts.password or "") or os.environ.get("AWS_SECRET_ACCESS_KEY", "")
    if not access_key or not secret_key:
        raise LocalError("the store needs an access key and a secret key", hint=_STORE)
    region = dict(pair.partition("=")[::2] for pair in parts.query.split("&") if pair).get("region", REGION)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}", region, access_key, secret_key


_STORE = "Write --store http://ACCESS:SECRET@host:9000, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."


def _addresses(
    secrets: Credentials,
    redis_url: str,
    store: tuple[str, str, str, str],
    ports: Mapping[str, int],
    state_dir: Path,
    control: str,
) -> Addresses:
    endpoint, region, access_key, secret_key = store
    return Addresses(
        redis_url=redis_url,
        store_endpoint=endpoint,
        store_region=region,
        access_key=access_key,
        secret_key=secret_key,
        gateway_port=ports["gateway"],
        flower_port=ports["flower"],
        token=secrets.token.get_secret_value(),
        hook_secret=secrets.hook_secret.get_secret_value(),
        flower_user=secrets.flower_user,
        flower_password=secrets.flower_password.get_secret_value(),
        state_dir=state_dir,
        control=control,
    )


def _valkey_service(server: Valkey) -> Service:
    server.prepare()
    env = {"PATH": os.defpath, "LC_ALL": "C"}
    return Service(
        "valkey", server.argv(), env, cwd=server.directory, ready=server.check_ready, before=server.before_start
    )


def _seaweed_service(server: Seaweed) -> Service:
    server.prepare()
    return Service(
        "seaweed",
        server.argv(),
        {"PATH": os.defpath, "HOME": str(server.directory), **server.env()},
        cwd=server.directory,
        ready=server.check_ready,
        before=server.before_start,
        after=server.remove_sockets,
        broken=server.broken,
    )


def _after(service: Service, needs: tuple[str, ...]) -> Service:
    return dataclasses.replace(service, needs=(*needs, *service.needs))


async def _first(work: Any, end: Any) -> bool:
    """Waits for the first of two; True when the work ended, and raises its error."""
    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(end)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            tasks[0].result()
            return True
        return False
    finally:
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
