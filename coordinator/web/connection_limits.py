"""Which connections the page keeps, and which requests it answers. Pure: the time is an argument, seconds, monotonic.

Rules
1. All connections together have a bound. Where it is reached, a newcomer takes the place of another connection: of the
   addresses that have quiet connections, the one with the most loses the connection that has been quiet longest. A
   connection is quiet from its start to its first whole request, and from each answer to the next request. Where none
   is quiet, the newcomer is turned away.
2. One public address (an IPv4 address, an IPv6 /64) has a bound of its own, for connections and for requests a second.
   Loopback and private addresses have none: a reverse proxy there brings all visitors over one address.
3. A connection that has been quiet for `quiet` seconds is cut. So an answer has that long to be taken, and the head of
   a request to come.
4. A request has a head of at most `head` bytes and no body. A connection that sends more than that between two
requests is cut."""

import ipaddress
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Final

from p2p.limits.subnets import client_key
from p2p.limits.token_bucket import TokenBuckets

RATE: Final = 50.0
BURST: Final = 200.0
"""Requests a second of one public address, and at once."""
MOST_HEADERS: Final = 64


@dataclass(frozen=True)
class WebLimits:
    """`connections`: in all. `per_address`: of one public address. `quiet`: seconds. `head`: bytes."""

    connections: int = 256
    per_address: int = 32
    quiet: float = 30.0
    head: int = 16 << 10


class ClientConnections:
    """The open connections. A connection is any hashable object."""

    def __init__(self, limits: WebLimits) -> None:
        self._limits = limits
        self._addresses: dict[object, str] = {}
        self._open: Counter[str] = Counter()
        self._quiet: OrderedDict[object, float] = OrderedDict()
        """Since when each is quiet, the longest first."""
        self._buckets = TokenBuckets(RATE, BURST)

    def __len__(self) -> int:
        return len(self._addresses)

    def refused(self, ip: str) -> tuple[str, str] | None:
        """Return the limit that turns a connection from `ip` away and a sentence; None: it may `enter`."""
        address = public(ip)
        if address is not None and self._open[address] >= self._limits.per_address:
            most = self._limits.per_address
            return "web-address", f"{address} has {most} with the page, the most that one address may have"
        if len(self) >= self._limits.connections and not self._quiet:
            most = self._limits.connections
            return "web", f"{most} are open with the page, and all at work (setting web.connections)"
        return None

    def enter(self, connection: object, ip: str, now: float) -> object | None:
        """Count a connection that is not refused. Return the one that makes way for it, to be cut, or None."""
        gone = self._victim() if len(self) >= self._limits.connections else None
        if gone is not None:
            self.leave(gone)
        address = client_key(ip)
        self._addresses[connection] = address
        self._open[address] += 1
        self._quiet[connection] = now
        return gone

    def leave(self, connection: object) -> None:
        """Forget a connection that has ended or makes way."""
        self._quiet.pop(connection, None)
        address = self._addresses.pop(connection, None)
        if address is not None:
            self._open[address] -= 1
            if not self._open[address]:
                del self._open[address]

    def ask(self, connection: object, ip: str, now: float) -> float:
        """Note a request: its connection is at work. Return 0 where it is answered, else the seconds until one is."""
        if connection in self._addresses:
            self._quiet.pop(connection, None)
        address = public(ip)
        if address is None:
            return 0.0
        return self._buckets.admit(address, now)

    def answered(self, connection: object, now: float) -> None:
        """Note that the answer of a connection is made."""
        if connection in self._addresses:
            self._quiet[connection] = now
            self._quiet.move_to_end(connection)

    def overdue(self, now: float) -> list[object]:
        """Return the connections that are to be cut by rule 3."""
        overdue_connections = []
        for connection, since in self._quiet.items():
            if now - since < self._limits.quiet:
                break
            overdue_connections.append(connection)
        return overdue_connections

    def _victim(self) -> object:
        """The connection that makes way by rule 1."""
        return max(self._quiet, key=lambda one: self._open[self._addresses[one]])  # of equals the first: quiet longest


def public(ip: str) -> str | None:
    """Return the name under which an address has a bound; None: it has none (rule 2)."""
    try:
        address = ipaddress.ip_address(ip.partition("%")[0])
    except ValueError:
        return None
    return client_key(ip) if address.is_global else None
