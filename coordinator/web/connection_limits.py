"""Limits on the page's connections and requests. Pure: the time is an argument, in monotonic seconds.

Rules
1. The total number of connections is bounded. At the bound, a new connection evicts an idle one: of the addresses with
   idle connections, the one with the most connections loses the one idle longest. With no idle connection, the new one
   is refused. A connection is idle from its start to its first complete request, and from each answer to the next
   request.
2. Each public address (an IPv4 address, an IPv6 /64) has a bound on connections and on requests per second. Loopback
   and private addresses have none: all visitors through a reverse proxy share one of these.
3. A connection idle for `idle` seconds is closed. So a client has that long to send its first request, and to
   receive an answer and send the next request.
4. A request has a head of at most `head` bytes and no body. A connection that sends more between two requests is
   closed.
"""

import ipaddress
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Final

from echo2.p2p.limits.subnets import client_key
from echo2.p2p.limits.token_bucket import TokenBuckets

REQUESTS_PER_SECOND: Final = 50.0
REQUEST_BURST: Final = 200.0
"""Token bucket of one public address: requests per second, and the burst."""
MOST_HEADERS: Final = 64


@dataclass(frozen=True)
class WebLimits:
    """The limits. `connections`: connections in total. `per_address`: connections per public address. `idle`: seconds.
    `head`: bytes."""

    connections: int = 256
    per_address: int = 32
    idle: float = 30.0
    head: int = 16 << 10


class ClientConnections:
    """The open connections, under the rules. A connection is any hashable object."""

    def __init__(self, limits: WebLimits) -> None:
        self._limits = limits
        self._addresses: dict[object, str] = {}
        self._open: Counter[str] = Counter()
        self._idle: OrderedDict[object, float] = OrderedDict()
        """Connection -> since when it is idle, the longest first."""
        self._buckets = TokenBuckets(REQUESTS_PER_SECOND, REQUEST_BURST)

    def __len__(self) -> int:
        return len(self._addresses)

    def refusal(self, ip: str) -> tuple[str, str] | None:
        """Return (limit, sentence) if a connection from `ip` is refused; None: it may `add`."""
        address = public(ip)
        if address is not None and self._open[address] >= self._limits.per_address:
            most = self._limits.per_address
            return "web-address", f"{address} has {most} with the page, the limit per address (web.address_connections)"
        if len(self) >= self._limits.connections and not self._idle:
            most = self._limits.connections
            return "web", f"{most} are open with the page, none of them idle (setting web.connections)"
        return None

    def add(self, connection: object, ip: str, now: float) -> object | None:
        """Count a connection that is not refused. Return the one that it evicts, to be closed, or None (rule 1)."""
        evicted = self._victim() if len(self) >= self._limits.connections else None
        if evicted is not None:
            self.remove(evicted)
        address = client_key(ip)
        self._addresses[connection] = address
        self._open[address] += 1
        self._idle[connection] = now
        return evicted

    def remove(self, connection: object) -> None:
        """Remove a connection that has ended or was evicted."""
        self._idle.pop(connection, None)
        address = self._addresses.pop(connection, None)
        if address is not None:
            self._open[address] -= 1
            if not self._open[address]:
                del self._open[address]

    def admit(self, connection: object, ip: str, now: float) -> float:
        """Count a request and mark its connection busy. Return 0 if it is admitted, else the seconds to wait."""
        if connection in self._addresses:
            self._idle.pop(connection, None)
        address = public(ip)
        if address is None:
            return 0.0
        return self._buckets.admit(address, now)

    def on_answer(self, connection: object, now: float) -> None:
        """Mark a connection idle: its answer is complete."""
        if connection in self._addresses:
            self._idle[connection] = now
            self._idle.move_to_end(connection)

    def overdue(self, now: float) -> list[object]:
        """Return the connections that were idle for too long, to be closed (rule 3)."""
        overdue_connections = []
        for connection, since in self._idle.items():
            if now - since < self._limits.idle:
                break
            overdue_connections.append(connection)
        return overdue_connections

    def _victim(self) -> object:
        """Choose the idle connection to evict (rule 1)."""
        # Of equals `max` returns the first, which is idle longest.
        return max(self._idle, key=lambda one: self._open[self._addresses[one]])


def public(ip: str) -> str | None:
    """Return the key of an address's limits (rule 2); None: it has no limits."""
    try:
        address = ipaddress.ip_address(ip.partition("%")[0])
    except ValueError:
        return None
    return client_key(ip) if address.is_global else None
