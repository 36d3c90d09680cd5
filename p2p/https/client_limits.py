"""Limits on the connections and requests of a listener's clients: HTTPS for nodes, and the page. Pure: `now` is an
argument, in monotonic seconds.

1. Connections are limited per household (p2p/limits/party.py) and in all, before the handshake; requests are limited
   per household by a token bucket. An excess is refused and never queued: a waiting client costs more than a refused
   one.
2. At the bound of all connections a new one evicts a waiting one, of the household that has most connections. A
   connection waits until its request is whole, body included: from its start, and from each answer. In this order they
   give way: bodies whose bytes do not pay for their time, at the least rate (p2p/limits/least_rate.py) and `BODY_GRACE`
   in advance, so that a byte now and then buys no place; those without a request; then bodies that pay and newcomers,
   who have `NEWCOMER_SECONDS` for handshake and request: of these two that which is more numerous. So neither bodies
   nor connections that come again at once take all places. Among equals that which is paid for the shortest time, or
   silent longest, is first.
3. A private address may be that of a proxy with many clients, and that of a trusted proxy counts as one. Over HTTPS a
   new connection beyond its bound evicts one of its own, by the same order; a busy one if no other is there. With the
   page private addresses have no bound (`bounds_private`).
4. A connection over which a key with accepted work made a request belongs to that key (`recognise`): it counts for no
   household, has a token bucket of the key, and is not evicted.
5. A quarter of the connections is reserved for public subnets with accepted work, at most one connection per subnet.
6. A connection without a request for `idle` seconds is closed. So a client has that long to send its first one, and to
   receive an answer and send the next one.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from echo2.p2p.limits.counts import take_one
from echo2.p2p.limits.least_rate import LEAST_RATE, RATE_SECONDS, Flow
from echo2.p2p.limits.party import Parties
from echo2.p2p.limits.token_bucket import TokenBuckets

NEWCOMER_SECONDS: Final = 5.0
BODY_GRACE: Final = 1.0
"""Seconds that the first bytes of a body may take."""
_PAYING_BODY: Final = 2
_NEWCOMER: Final = 3
"""Places of two kinds of connections among those that give way."""


@dataclass(eq=False)
class ClientLimits:
    """The limits of a listener, unless stated those over HTTPS; `connections` and `per_visitor` may change meanwhile.
    `section`: name of its settings. `connections`: connections in all. `per_visitor`: connections per household.
    `rate`, `burst`: requests per household, per second and at once. `idle`: seconds between two requests.
    `bounds_private`: see rule 3."""

    section: str = "https"
    connections: int = 1024
    per_visitor: int = 128
    rate: float = 100.0
    burst: float = 200.0
    idle: float = 75.0
    bounds_private: bool = True
    parties: Parties = field(default_factory=Parties)


@dataclass(eq=False)
class HttpsLimits(ClientLimits):
    """The limits of an HTTPS server. `handshake`, `patience`: seconds for TLS, for one write."""

    handshake: float = 10.0
    patience: float = 20.0


class _Client(NamedTuple):
    """A connection's client. `holder`: its household, or the key that was recognised."""

    holder: str
    public: bool
    known: bool


class _Wait(NamedTuple):
    """The wait for a connection's request. `since`: its start. `is_new`: whether it is that for the first one."""

    since: float
    is_new: bool


class _Body(NamedTuple):
    """A body whose rest has not come. `began`: when it was first waited for. `flow`: what came of it."""

    began: float
    flow: Flow

    @property
    def paid_until(self) -> float:
        """Time up to which its bytes pay for its place (rule 2)."""
        paid = self.began + BODY_GRACE + self.flow.nbytes / LEAST_RATE
        return min(paid, self.flow.at + RATE_SECONDS)


class ClientConnections:
    """The open connections of one listener, under the rules. A connection is any hashable object."""

    def __init__(self, limits: ClientLimits) -> None:
        self._limits = limits
        self._clients: dict[object, _Client] = {}
        self._open: Counter[str] = Counter()
        self._known = 0
        self.waiting: dict[object, _Wait] = {}
        """Connections without a request, silent longest first."""
        self._bodies: dict[object, _Body] = {}
        self._buckets = TokenBuckets(limits.rate, limits.burst)

    def __len__(self) -> int:
        return len(self._clients)

    def refusal(self, ip: str) -> tuple[str, str] | None:
        """Return (limit, sentence) if a connection from `ip` is refused; None: it may `add`."""
        limits, client = self._limits, self._client_at(ip)
        if client.public and self._is_crowded(client):
            return f"{limits.section}-address", (
                f"{client.holder} has {limits.per_visitor} connections, the limit per address "
                f"(setting {limits.section}.address_connections)"
            )
        if self._is_full(client) and not self._victims(client):
            return limits.section, (
                f"{limits.connections} are open, all of them at work (setting {limits.section}.connections)"
            )
        return None

    def add(self, connection: object, ip: str, now: float) -> object | None:
        """Count a connection that is not refused. Return the one that it evicts, to be closed, or None."""
        client = self._client_at(ip)
        evicted = None
        if self._is_full(client) or self._is_crowded(client):
            evicted = self._first_to_go(self._victims(client), now)
        if evicted is not None:
            self.remove(evicted)
        self._count(connection, client)
        self.waiting[connection] = _Wait(now, is_new=True)
        return evicted

    def recognise(self, connection: object, key: str) -> None:
        """Note that a connection's client proved a key with accepted work, named by its peer id (rule 4)."""
        client = self._clients.get(connection)
        if client is not None and not client.public and client.holder != key:
            self._uncount(client)
            self._count(connection, client._replace(holder=key, known=True))

    def remove(self, connection: object) -> None:
        """Remove a connection that has ended or was evicted."""
        self.on_whole(connection)
        client = self._clients.pop(connection, None)
        if client is not None:
            self._uncount(client)

    def admit(self, connection: object, now: float, ip: str | None = None) -> float:
        """Count a request and mark its connection busy. Return 0 if it is admitted, else the seconds to wait. `ip`: the
        client's address where a proxy at the connection's own speaks for it; None: the connection's."""
        self.on_whole(connection)
        client = self._clients.get(connection) if ip is None else self._client_at(ip)
        if client is None or not self._is_bounded(client):
            return 0.0
        return self._buckets.admit(client.holder, now)

    def on_part(self, connection: object, nbytes: int, now: float) -> None:
        """Mark a connection waiting for the rest of a body, of which `nbytes` have come."""
        if connection in self._clients:
            self.waiting.pop(connection, None)
            before = self._bodies.get(connection)
            self._bodies[connection] = _Body(now if before is None else before.began, Flow(nbytes, now))

    def on_answer(self, connection: object, now: float) -> None:
        """Mark a connection waiting: its answer is complete."""
        self.on_whole(connection)
        if connection in self._clients:
            self.waiting[connection] = _Wait(now, is_new=False)

    def on_whole(self, connection: object) -> None:
        """Mark a connection busy: its body is whole, or is not read any more."""
        self.waiting.pop(connection, None)
        self._bodies.pop(connection, None)

    def overdue(self, now: float) -> list[object]:
        """Return the connections that had no request for too long, to be closed (rule 6)."""
        return [one for one, wait in self.waiting.items() if now - wait.since >= self._limits.idle]

    def _client_at(self, ip: str) -> _Client:
        parties, party = self._limits.parties, self._limits.parties.at(ip)
        return _Client(party.household, party.is_public and ip not in parties.proxies, party.name in parties.known)

    def _is_bounded(self, client: _Client) -> bool:
        return client.public or self._limits.bounds_private

    def _is_crowded(self, client: _Client) -> bool:
        return self._is_bounded(client) and self._open[client.holder] >= self._limits.per_visitor

    def _is_full(self, client: _Client) -> bool:
        most, known_subnets = self._limits.connections, self._limits.parties.known_subnets
        reserved = 0 if client.known else min(most // 4, known_subnets) - self._known
        return len(self) + max(0, reserved) >= most

    def _victims(self, client: _Client) -> list[object]:
        """Return the connections of which a new one of `client` evicts one (rules 2 to 4)."""
        if self._is_crowded(client):
            return [one for one, other in self._clients.items() if other.holder == client.holder]
        strangers = [one for one in (*self.waiting, *self._bodies) if not self._clients[one].known]
        most = max((self._open[self._clients[one].holder] for one in strangers), default=0)
        return [one for one in strangers if self._open[self._clients[one].holder] == most]

    def _first_to_go(self, connections: list[object], now: float) -> object | None:
        """Return the connection that gives way before the others (rule 2); None: there are none."""
        orders = {one: self._order(one, now) for one in connections}
        number = Counter(kind for kind, _ in orders.values())
        if number[_NEWCOMER] > number[_PAYING_BODY]:
            swapped = {_PAYING_BODY: _NEWCOMER, _NEWCOMER: _PAYING_BODY}
            orders = {one: (swapped.get(kind, kind), at) for one, (kind, at) in orders.items()}
        return min(orders, key=orders.__getitem__, default=None)

    def _order(self, connection: object, now: float) -> tuple[int, float]:
        """Return the place of a connection among those that give way, first to last (rule 2)."""
        if (body := self._bodies.get(connection)) is not None:
            return (0 if body.paid_until < now else _PAYING_BODY), body.paid_until
        if (wait := self.waiting.get(connection)) is not None:
            is_newcomer = wait.is_new and now - wait.since < NEWCOMER_SECONDS
            return (_NEWCOMER if is_newcomer else 1), wait.since
        return _NEWCOMER + 1, 0.0

    def _count(self, connection: object, client: _Client) -> None:
        self._clients[connection] = client
        self._open[client.holder] += 1
        self._known += client.known

    def _uncount(self, client: _Client) -> None:
        self._known -= client.known
        take_one(self._open, client.holder)
