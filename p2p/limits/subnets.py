"""Limits on the use of this peer by one peer or one subnet. Pure: `now` in seconds, monotonic.

1. Requests beyond `ASKS_BURST` at once and `ASKS_RATE` per second are delayed, which slows the requester down. A whole
   party (p2p/limits/origin.py) may send `PARTY` times as many. Exceeding the rate never bans: an honest node that was
   disconnected has much to report when it returns.
2. All bytes go over connections on which the other side completed a handshake, so no third party can be flooded
   through this peer. An answer may be larger than its request, since only the requester gets it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from echo2.p2p.guard import log
from echo2.p2p.limits.party import Parties
from echo2.runtime.log_throttle import LogThrottle

CONNECTIONS: Final = 256
PER_SUBNET: Final = 32
"""Defaults of `PeerLimits`."""
DIALS_RATE: Final = 1.0
DIALS_BURST: Final = 64.0
ASKS_RATE: Final = 100.0
"""Requests per second: a node sends two per group, and a quick one hands in more than thirty groups per second."""
ASKS_BURST: Final = 200.0
PARTY: Final = 2
"""Limit on the requests of one party, as a multiple of that of one connection."""


@dataclass(eq=False)
class PeerLimits:
    """The owner's settings, of which `connections` and `per_subnet` may change meanwhile. `connections`: connections
    with all peers together. `per_subnet`: accepted from one public subnet. `parties`: says which subnet that is."""

    connections: int = CONNECTIONS
    per_subnet: int = PER_SUBNET
    parties: Parties = field(default_factory=Parties)


class RefusalCounter:
    """Counts refused connections by limit, and logs them rarely."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: monotonic seconds."""
        self._refused = LogThrottle(clock)
        self.counts = self._refused.counts

    def count(self, limit: str, why: str) -> None:
        """Count one connection refused for `limit` (a word). `why`: the reason, one sentence."""
        if times := self._refused.count(limit):
            log.warning("connection refused: %s (%d since this was last said)", why, times)
