"""The log records of py-libp2p, forwarded at level debug.

Upstream writes its warnings to stderr. Most are about routine gossip ("GRAFT: ignoring request ...") or connections of
unknown peers. Operators cannot act on these warnings; this package logs the relevant ones itself. So upstream's records
become debug records of this package's logger. With `LIBP2P_DEBUG` upstream prints by itself as well.
"""

import logging

log = logging.getLogger("p2p")


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
    """Attach the forwarder. Call this after libp2p is imported, since the import sets up libp2p's logger."""
    upstream = logging.getLogger("libp2p")
    if not any(isinstance(handler, DebugForwarder) for handler in upstream.handlers):
        upstream.addHandler(DebugForwarder())
