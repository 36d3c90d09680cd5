"""Log lines of the daemon: plain on a terminal, JSON where asked. To stderr, so that stdout stays for answers.

A key, an invite or a passphrase never reaches a log line: a field with such a name is blotted out.
"""

import logging
import sys
from typing import Any, Final

import structlog

_SECRET: Final = ("invite", "passphrase", "private", "secret", "seed")


def set_up_logging(level: str, *, json_lines: bool) -> None:
    """For the whole process. `level`: debug, info, warning or error."""
    render: Any = (
        structlog.processors.JSONRenderer()
        if json_lines
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0)
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            blot,
            structlog.processors.format_exc_info,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


def blot(logger: Any, method: str, event: Any) -> Any:
    """Blot out what a log must not hold."""
    for name in event:
        if any(word in name.lower() for word in _SECRET):
            event[name] = "***"
    return event
