"""`tidemill placement`: the entry point of the service; the only place here that reads the settings."""

from __future__ import annotations

import click


@click.command("placement", epilog="Example:\n\n  tidemill placement")
def run() -> None:
    """Run the placement service: it binds jobs to agents, and starts and stops agents and runners."""
    from tidemill.settings import Settings
    from tidemill.telemetry import setup_logging
    from tidemill_placement.assembly import serve

    settings = Settings()
    setup_logging(settings.log_level, settings.log_json)
    serve(settings)
