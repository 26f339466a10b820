"""`tidemill gateway`: the entry point; the only place of the gateway that reads the settings.

The port is open at once, so that `/healthz` answers; `/readyz` says no until store and ledger are there. A thread waits
for both, prepares the platform bucket, deploys the functions of the settings, and only then begins to take events and
to list.
"""

from __future__ import annotations

import asyncio
import ctypes
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import click
import structlog

from tidemill.errors import InvalidSpec, ServiceUnavailable, StoreUnavailable, TidemillError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import uvicorn

    from tidemill.settings import Settings
    from tidemill_gateway.services import Services

_PAUSE_S = 0.5
_SAY_S = 5.0
_GRACE_S = 1
_SWITCH_S = 0.001
_M_MMAP_THRESHOLD = -3  # of malloc.h
_MAPPED_BYTES = 2**17
log = structlog.get_logger(__name__)


@click.command("gateway", epilog="Example:\n\n  TIDEMILL_GATEWAY__TOKEN=... tidemill gateway")
@click.option("--host", default=None, help="Address to listen on. Default: TIDEMILL_GATEWAY__HOST.")
@click.option("--port", type=click.IntRange(0, 65535), default=None, help="Port. Default: TIDEMILL_GATEWAY__PORT.")
def run(host: str | None, port: int | None) -> None:
    """Serve the HTTP API, take bucket events, and list the buckets of all triggers."""
    from tidemill.settings import Settings
    from tidemill.telemetry import setup_logging

    settings = Settings()
    setup_logging(settings.log_level, settings.log_json)
    if not settings.gateway.token.get_secret_value():
        raise InvalidSpec(
            "the gateway has no token, so everybody could use it",
            hint="Set TIDEMILL_GATEWAY__TOKEN to a long random text; `tidemill up` makes one by itself.",
        )
    failure = serve(settings, host or settings.gateway.host, settings.gateway.port if port is None else port)
    if failure is not None:
        raise failure


def serve(settings: Settings, host: str, port: int) -> TidemillError | None:
    """Serve until a signal comes. Gives the error that made it impossible; raises when it cannot even listen."""
    import uvicorn

    from tidemill_gateway.api import create_app

    # The loop answers bucket events while threads work on earlier ones: it shall not wait 5 ms for each of them.
    sys.setswitchinterval(_SWITCH_S)
    _give_large_blocks_back()
    listener = _listen(host, port)
    services = _services(settings)
    config = uvicorn.Config(
        create_app(services),
        log_config=None,
        access_log=False,  # `api.edge` writes a line that holds no secret
        server_header=False,
        timeout_graceful_shutdown=_GRACE_S,
        timeout_keep_alive=75,
        lifespan="on",
    )
    server = uvicorn.Server(config)
    boot = Boot(settings, services, server)
    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn handles both while it serves, and raises them again afterwards: then this is all that is left to do.
        signal.signal(number, lambda *_: boot.stop.set())
    boot.start()
    log.info("gateway.listens", host=host, port=listener.getsockname()[1])
    try:
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(server.serve(sockets=[listener]))
    finally:
        boot.stop.set()
        services.stop()
    log.info("gateway.ended")
    return boot.failure


def _give_large_blocks_back() -> None:
    """Let a freed block of 128 KiB or more go back to the system at once.

    glibc raises this threshold to the largest block freed so far: after one body of some megabytes, blocks of that size
    come from a heap that hardly shrinks. Another C library has its own ways.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)


def _listen(host: str, port: int) -> socket.socket:
    """Raises `ServiceUnavailable` when the address or the port is not to be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio switches Nagle's algorithm off only where the protocol is named; with it each POST takes 40 ms longer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise ServiceUnavailable(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            hint="Choose another port with --port or TIDEMILL_GATEWAY__PORT, or end what listens there.",
        ) from error
    return listener


def _services(settings: Settings) -> Services:
    from tidemill.doorbell import Doorbell
    from tidemill.ledger import connect
    from tidemill.record import Record
    from tidemill.store import open_store
    from tidemill_gateway.services import Services

    url = settings.redis.url.get_secret_value()
    store = open_store(settings.store)

    return Services(
        ledger=connect(url, settings.redis.prefix),
        record=Record(store, settings.store.bucket),
        store=store,
        bell=Doorbell(url).message,
        gateway=settings.gateway,
        intake=settings.intake,
        lease_s=settings.agent.lease_s,
    )


class Boot:
    """What happens beside the first requests. `failure` is what cannot get better by waiting."""

    def __init__(self, settings: Settings, services: Services, server: uvicorn.Server) -> None:
        self._settings = settings
        self._services = services
        self._server = server
        self.stop = threading.Event()
        self.failure: TidemillError | None = None

    def start(self) -> None:
        threading.Thread(target=self._run, name="boot", daemon=True).start()

    def _run(self) -> None:
        try:
            if self._wait("store", self._services.record.prepare) and self._wait("ledger", self._services.ledger.ping):
                self._deploy()
                if not self.stop.is_set():
                    self._services.start()
                    log.info("gateway.ready")
        except TidemillError as error:
            log.error("gateway.refused", code=error.error_code, error=error.message, hint=error.hint)
            self.failure = error
            self._server.should_exit = True
        except Exception:
            log.exception("gateway.failed")
            self.failure = ServiceUnavailable("the gateway could not start", hint="Its log has the traceback.")
            self._server.should_exit = True

    def _wait(self, name: str, ask: Callable[[], object]) -> bool:
        """Ask until it answers; false when the process is to end. Raises what waiting cannot mend."""
        waited_s = 0.0
        while not self.stop.is_set():
            try:
                ask()
            except ServiceUnavailable as error:
                if name == "store" and not isinstance(error, StoreUnavailable):
                    raise  # it answers, and cannot be used: no conditional writes
                if waited_s % _SAY_S == 0:
                    log.warning("gateway.waits", server=name, waited_s=waited_s, error=error.message)
                self.stop.wait(_PAUSE_S)
                waited_s += _PAUSE_S
            else:
                return True
        return False

    def _deploy(self) -> None:
        """Deploy the functions of the settings. One that is wrong is logged, and the others are deployed."""
        folder = self._settings.functions_dir
        for found in sorted(_function_folders(folder)) if folder is not None else ():
            try:
                self._services.deployer.deploy_folder(found, self._services.owner)
            except TidemillError as error:
                log.error("function.refused", folder=found.name, code=error.error_code, error=error.message)


def _function_folders(folder: Path) -> list[Path]:
    if (folder / "function.yaml").is_file():
        return [folder]
    if not folder.is_dir():
        log.error("functions_dir.missing", folder=str(folder))
        return []
    return [path for path in folder.iterdir() if (path / "function.yaml").is_file()]
