"""Log lines of the daemon: plain on a terminal, JSON where asked. To stderr, so that stdout stays for answers.

1. A key, an invite or a passphrase never reaches a log line: a field with such a name is blotted out.
2. What the network plane and libraries log through the standard library has the same form. It is shown from warning on;
   at level debug the network plane's finer lines too, and with them those of libp2p (p2p/libp2p_log.py).
"""

import logging
import sys
from typing import Any, Final

import structlog

_SECRET: Final = ("invite", "passphrase", "private", "secret", "seed")


def set_up_logging(level: str, *, json_lines: bool) -> None:
    """For the whole process. `level`: debug, info, warning or error."""
    least = logging.getLevelNamesMapping()[level.upper()]
    render: Any = (
        structlog.processors.JSONRenderer()
        if json_lines
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0)
    )
    stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
    shared: list[Any] = [structlog.processors.add_log_level, stamp, blot, structlog.processors.format_exc_info]
    structlog.configure(
        processors=[*shared, render],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    last: list[Any] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, render]
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processors=last, foreign_pre_chain=shared))
    logging.basicConfig(handlers=[handler], level=max(least, logging.WARNING), force=True)
    logging.getLogger("p2p").setLevel(logging.DEBUG if level == "debug" else logging.NOTSET)


def blot(logger: Any, method: str, event: Any) -> Any:
    """Blot out what a log must not hold."""
    for name in event:
        if any(word in name.lower() for word in _SECRET):
            event[name] = "***"
    return event
