"""The log records of py-libp2p, forwarded at level debug.

Most of upstream's warnings are about connections of unknown peers. Operators cannot act on these warnings; this package
logs the relevant ones itself. So upstream's records from level warning on become debug records of this package's
logger, and reach no other.
"""

import logging
from typing import Final

from echo2.p2p.guard import log

UPSTREAM: Final = ("echo2._libp2p", "libp2p")
"""Upstream's loggers: named by module, or by a text in it."""


class DebugForwarder(logging.Handler):
    """Forwards records at level debug."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
        except Exception:  # a malformed record of upstream must not fail the code that logged it
            self.handleError(record)
        else:
            log.debug("%s: %s", record.name, text)


def forward_at_debug() -> None:
    """Attach the forwarder; further calls change nothing."""
    for upstream in map(logging.getLogger, UPSTREAM):
        upstream.setLevel(logging.WARNING)
        upstream.propagate = False
        if not any(isinstance(handler, DebugForwarder) for handler in upstream.handlers):
            upstream.addHandler(DebugForwarder())
