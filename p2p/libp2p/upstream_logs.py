"""What py-libp2p says of itself.

It hands warnings to stderr as they are, most of them about gossip's everyday life ("GRAFT: ignoring request ...") or a
stranger's connection. Who runs a node can do nothing about either; what concerns them this package says itself. So
upstream's lines become fine ones of this package's logger. With `LIBP2P_DEBUG` upstream prints by itself as well.
"""

import logging

log = logging.getLogger("p2p")


class DebugForwarder(logging.Handler):
    """Passes records on, at level debug."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            said = self.format(record)
        except Exception:  # whatever stands in upstream's line, its caller goes on
            self.handleError(record)
        else:
            log.debug("%s: %s", record.name, said)


def forward_at_debug() -> None:
    """Once libp2p is imported: it sets up its logger then."""
    upstream = logging.getLogger("libp2p")
    if not any(isinstance(handler, DebugForwarder) for handler in upstream.handlers):
        upstream.addHandler(DebugForwarder())
