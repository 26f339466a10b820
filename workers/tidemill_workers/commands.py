"""`tidemill agent`: the entry point of an agent; the only place here that reads the settings."""

from __future__ import annotations

import re
import secrets
import time

import click
import structlog

from tidemill.errors import InvalidSpec, NotFound, ServiceUnavailable

log = structlog.get_logger(__name__)


@click.command("agent", epilog="Example:\n\n  tidemill agent --pool cpu-fast")
@click.option("--pool", required=True, help="Pool that this agent belongs to; apply it first.")
@click.option("--name", default=None, help="Name of the agent: its pool's, '-', hex digits. Default: six of them.")
def run(pool: str, name: str | None) -> None:
    """Run an agent: a Celery worker that claims jobs of its pool and runs functions in child processes."""
    from tidemill.ledger import connect
    from tidemill.record import Record
    from tidemill.settings import Settings
    from tidemill.store import open_store
    from tidemill.telemetry import setup_logging
    from tidemill_workers.agent.app import serve
    from tidemill_workers.agent.service import Agent
    from tidemill_workers.agent.workdir import work_folder

    name = name or f"{pool}-{secrets.token_hex(3)}"
    if not re.fullmatch(f"{re.escape(pool)}-[0-9a-f]+", name):
        raise InvalidSpec(f"{name} is no name for an agent of pool {pool}", hint=f"Call it {pool}-1, say.")
    settings = Settings()
    setup_logging(settings.log_level, settings.log_json)
    url = settings.redis.url.get_secret_value()
    ledger = connect(url, settings.redis.prefix)
    spec = None
    for attempt in range(30):
        try:
            found = ledger.pools().get(pool)
            if found is None:
                raise NotFound(f"there is no pool {pool}", hint="`tidemill pool apply FILE` adds pools.")
            spec = found.spec
            break
        except ServiceUnavailable as error:
            log.warning("agent.waits_for_ledger", error=str(error), tries=attempt + 1)
            time.sleep(1)
    if spec is None:
        raise ServiceUnavailable("the ledger did not answer for 30 s")
    record = Record(open_store(settings.store), settings.store.bucket)
    with work_folder(settings.agent.work_dir) as folder:
        agent = Agent(name, spec, ledger, record, settings.agent, folder)
        serve(url, agent, settings.log_level)
