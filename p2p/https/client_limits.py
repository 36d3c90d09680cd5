"""Limits on the connections and requests of HTTPS clients. Pure: the time is an argument.

1. A client is an IPv4 address, or the /64 of an IPv6 one: about the block that one household has.
2. Connections are limited per client and in all, before the handshake; requests are limited per client by a token
   bucket. An excess is refused and never queued: a waiting client costs more than a refused one.
3. Memory is bounded: the bucket of the client whose last request is the oldest is forgotten first.
4. A quarter of the connections is reserved for clients of public subnets with accepted work, at most one connection per
   subnet. A private address gets none: the party of its next connection is a new one (p2p/limits/origin.py, rule 1).
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from echo2.p2p.limits.origin import SubnetOf, subnets_among
from echo2.p2p.limits.subnets import client_key, subnet_of
from echo2.p2p.limits.token_bucket import TokenBuckets


@dataclass(frozen=True)
class HttpsLimits:
    """The limits of an HTTPS server. `connections`: connections in all. `per_visitor`: connections per client. `rate`,
    `burst`: requests per client, per second and at once. `handshake`, `idle`, `patience`: seconds for TLS, between two
    requests, for one write. `subnet_of`: see `PeerLimits`."""

    connections: int = 1024
    per_visitor: int = 128
    rate: float = 100.0
    burst: float = 200.0
    handshake: float = 10.0
    idle: float = 75.0
    patience: float = 20.0
    subnet_of: SubnetOf = subnet_of


class ClientLimiter:
    """Counts the connections and requests of each client."""

    def __init__(self, limits: HttpsLimits) -> None:
        self._limits = limits
        self._connections: Counter[str] = Counter()
        self._known: frozenset[str] = frozenset()
        self._known_of = Counter[str]()
        self._known_total = 0
        self._requests = TokenBuckets(limits.rate, limits.burst)

    def enter(self, host: str) -> tuple[str, str] | None:
        """Count a new connection. Return the limit that refuses it and a sentence; None if it is admitted: `leave` must
        then follow."""
        client, most, known = client_key(host), self._limits, self._is_known(host)
        reserved = 0 if known else min(most.connections // 4, len(self._known)) - self._known_total
        if self._connections.total() + max(0, reserved) >= most.connections:
            return "https", f"{most.connections} are open over HTTPS, the most allowed (setting https.connections)"
        if self._connections[client] >= most.per_visitor:
            return "https-address", f"{client} has {most.per_visitor} over HTTPS, the most that one address may have"
        self._connections[client] += 1
        self._known_of[client] += known
        self._known_total += known
        return None

    def leave(self, host: str) -> None:
        """Note the end of a connection that `enter` admitted."""
        client = client_key(host)
        self._connections[client] -= 1
        if self._known_of[client]:
            self._known_of[client] -= 1
            self._known_total -= 1
        if self._connections[client] <= 0:
            del self._connections[client], self._known_of[client]

    def keep(self, parties: Collection[str]) -> None:
        """Reserve connections for those of these parties that are subnets (rule 4); replaces the parties named
        before."""
        self._known = subnets_among(parties)

    def _is_known(self, host: str) -> bool:
        return self._limits.subnet_of(host) in self._known

    def ask(self, host: str, now: float) -> float:
        """Count a request; return 0 if it is admitted, else the seconds until one will be. `now`: monotonic."""
        return self._requests.admit(client_key(host), now)
