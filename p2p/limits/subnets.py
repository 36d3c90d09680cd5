"""Limits on the use of this peer by one peer or one subnet. Pure: `now` in seconds, monotonic.

1. A subnet is an IPv4 /24 or an IPv6 /48: about the block that one owner gets. p2p/limits/connection_places.py limits
   its share of the connections and handshakes.
2. Private and loopback addresses are exempt: one owner may run many peers. A relayed connection counts for no subnet;
   its requests count for its party (p2p/limits/origin.py, rule 2).
3. Requests beyond `ASKS_BURST` at once and `ASKS_RATE` per second are delayed, which slows the requester down. A whole
   party (p2p/limits/origin.py) may send `PARTY` times as many. Exceeding the rate never bans: an honest node that was
   disconnected has much to report when it returns.
4. All bytes go over connections on which the other side completed a handshake, so no third party can be flooded
   through this peer. An answer may be larger than its request, since only the requester gets it. Dials to addresses
   learnt from others are limited by p2p/limits/dial_backoff.py.
"""

import ipaddress
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from echo2.p2p.limits.origin import SubnetOf
from echo2.runtime.log_throttle import LogThrottle

log = logging.getLogger("p2p")

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


def subnet_of(ip: str) -> str | None:
    """Return the subnet that an address counts for, as text; None for one that rule 2 exempts."""
    try:
        address = ipaddress.ip_address(ip.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if not address.is_global:
        return None
    return str(ipaddress.ip_network((address, 24 if address.version == 4 else 48), strict=False))


def client_key(host: str) -> str:
    """Return the part of an address that one household has: an IPv4 address, or the /64 of an IPv6 one. `host`: an IP
    address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


@dataclass(frozen=True)
class PeerLimits:
    """The owner's settings. `connections`: connections with all peers together. `per_subnet`: accepted from one public
    subnet. `subnet_of`: maps an address to its subnet; tests may treat loopback addresses as public."""

    connections: int = CONNECTIONS
    per_subnet: int = PER_SUBNET
    subnet_of: SubnetOf = subnet_of


class RefusalCounter:
    """Counts refused connections by limit, and logs them rarely."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: monotonic seconds."""
        self._refused = LogThrottle(clock)

    def count(self, limit: str, why: str) -> None:
        """Count one connection refused for `limit` (a word). `why`: the reason, one sentence."""
        if times := self._refused.count(limit):
            log.warning("connection refused: %s (%d since this was last said)", why, times)

    def counts(self) -> dict[str, int]:
        """Return the number of refused connections since the start, by limit."""
        return self._refused.counts()
