"""Who may come in over HTTPS, and how often. Pure: the time is an argument.

1. A visitor is an IPv4 address, or the /64 of an IPv6 one, which is what one household has.
2. Each has at most so many connections, counted before the handshake, and so many requests a second (a token bucket);
   all together have a bound too. Who exceeds it is turned away, never kept waiting: waiting costs us more.
3. What is remembered is bounded: the buckets of the visitors that asked longest ago are forgotten first.
4. A quarter of the connections is kept for visitors of parties with accepted work, as many as there are such.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from p2p.limits.origin import SubnetOf
from p2p.limits.subnets import client_key, subnet_of
from p2p.limits.token_bucket import TokenBuckets


@dataclass(frozen=True)
class HttpsLimits:
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


class ClientLimiter:
    """Counts visitors."""

    def __init__(self, limits: HttpsLimits) -> None:
        self._limits = limits
        self._inside: Counter[str] = Counter()
        self._known: frozenset[str] = frozenset()
        self._known_of, self._known_inside = Counter[str](), 0
        self._requests = TokenBuckets(limits.rate, limits.burst)

    def enter(self, host: str) -> tuple[str, str] | None:
        """Count a connection that comes. Return the limit that refuses it and a sentence; None where it may stay, and
        then it must `leave`."""
        who, most, known = client_key(host), self._limits, self._is_known(host)
        kept = 0 if known else min(most.connections // 4, len(self._known)) - self._known_inside
        if self._inside.total() + max(0, kept) >= most.connections:
            return "https", f"{most.connections} are open over HTTPS, the most there may be (setting https.connections)"
        if self._inside[who] >= most.per_visitor:
            return "https-address", f"{who} has {most.per_visitor} over HTTPS, the most that one address may have"
        self._inside[who] += 1
        self._known_of[who] += known
        self._known_inside += known
        return None

    def leave(self, host: str) -> None:
        """A connection that had entered is gone."""
        who = client_key(host)
        self._inside[who] -= 1
        if self._known_of[who]:
            self._known_of[who] -= 1
            self._known_inside -= 1
        if self._inside[who] <= 0:
            del self._inside[who], self._known_of[who]

    def keep(self, parties: Collection[str]) -> None:
        """Keep places for visitors of these parties from now on (rule 4)."""
        self._known = frozenset(parties)

    def _is_known(self, host: str) -> bool:
        return (self._limits.subnet_of(host) or host) in self._known

    def ask(self, host: str, now: float) -> float:
        """A request comes: 0 where it may be served, else the seconds until one may."""
        return self._requests.admit(client_key(host), now)
