"""Who may come in over HTTPS, and how often. Pure: the time is an argument.

1. A visitor is an IPv4 address, or the /64 of an IPv6 one, which is what one household has.
2. Each has at most so many connections, counted before the handshake, and so many requests a second (a token bucket);
   all together have a bound too. Who exceeds it is turned away, never kept waiting: waiting costs us more.
3. What is remembered is bounded: buckets that are full again are forgotten first.
"""

import ipaddress
from collections import Counter, OrderedDict
from dataclasses import dataclass

from p2p.limits.origin import SubnetOf
from p2p.limits.subnets import subnet_of


@dataclass(frozen=True)
class Limits:
    """`connections`: in all. `per_visitor`: connections of one. `rate`, `burst`: requests a second, and at once.
    `handshake`, `idle`, `patience`: seconds for TLS, between two requests, for one read or write. `slowest`: bytes a
    second of a request's body on the whole. `subnet_of`: see `PeerLimits`."""

    connections: int = 1024
    per_visitor: int = 128
    rate: float = 50.0
    burst: float = 200.0
    handshake: float = 10.0
    idle: float = 75.0
    patience: float = 20.0
    slowest: float = 4096.0
    subnet_of: SubnetOf = subnet_of


class Door:
    """Counts visitors."""

    MOST_BUCKETS = 4096

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._inside: Counter[str] = Counter()
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def enter(self, host: str) -> tuple[str, str] | None:
        """Count a connection that comes. Return the limit that refuses it and a sentence; None where it may stay, and
        then it must `leave`."""
        who, most = visitor(host), self._limits
        if self._inside.total() >= most.connections:
            return "https", f"{most.connections} are open over HTTPS, the most there may be (setting https.connections)"
        if self._inside[who] >= most.per_visitor:
            return "https-address", f"{who} has {most.per_visitor} over HTTPS, the most that one address may have"
        self._inside[who] += 1
        return None

    def leave(self, host: str) -> None:
        """A connection that had entered is gone."""
        who = visitor(host)
        self._inside[who] -= 1
        if self._inside[who] <= 0:
            del self._inside[who]

    def ask(self, host: str, now: float) -> float:
        """A request comes: 0 where it may be served, else the seconds until one may."""
        who = visitor(host)
        left, at = self._buckets.pop(who, (self._limits.burst, now))
        left = min(self._limits.burst, left + (now - at) * self._limits.rate)
        served = left >= 1
        self._buckets[who] = (left - 1 if served else left, now)
        if len(self._buckets) > self.MOST_BUCKETS:
            self._buckets.popitem(last=False)
        return 0.0 if served else (1 - left) / self._limits.rate


def visitor(host: str) -> str:
    """Rule 1. `host`: an IP address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)
