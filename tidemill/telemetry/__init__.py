"""How services say what they do: structured log lines on standard error.

The event of a line is a name (`job.accepted`), everything else are fields. Never payloads, never secrets.
"""

from __future__ import annotations

import logging
import sys

import structlog


def setup_logging(level: str = "info", as_json: bool = False) -> None:
    """Set up structlog and the standard library's logging for one process.

    Args:
        level: least level that is written: debug, info, warning or error.
        as_json: one JSON object a line instead of text.
    """
    number = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
    renderer: structlog.typing.Processor
    if as_json:
        renderer = structlog.processors.JSONRenderer()
    else:
        # Its own default, Rich's, prints local variables, which hold tokens and payloads, and takes seconds.
        formatter = structlog.dev.plain_traceback
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=formatter)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info if as_json else structlog.processors.UnicodeDecoder(),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(
        level=max(number, logging.WARNING), stream=sys.stderr, format="%(levelname)s %(name)s %(message)s"
    )
