"""Decide whether an incoming connection is admitted, as soon as it is accepted. Pure: `now` in seconds, monotonic.

1. A connection occupies a place from its acceptance to its end. It is counted before the handshake, which costs this
   side more than the other.
2. A public subnet (p2p/limits/party.py) has at most `per_subnet` connections, handshakes included. New ones are
   limited to `DIALS_BURST` at once, then `DIALS_RATE` per second. One household may have `per_subnet` / 2
   handshakes in progress, and half of that rate. Private addresses are exempt: one owner may run many peers, and a
   proxy's address is that of all its clients.
3. At most a quarter of the places, at least `HANDSHAKES_MIN`, are in handshakes. One more evicts the oldest handshake
   of the household with most of them, so that silent connections cannot fill the table. With no free place at all, that
   handshake is evicted too, if it began at least `HANDSHAKE_GRACE` seconds ago; otherwise the new one is refused.
4. A quarter of the places is reserved for parties with accepted work, at most one place per party, so that unknown
   peers cannot lock them out. A subnet is recognised before the handshake. A key at a private address is recognised
   after it: until then its connection may occupy a reserved place, and without accepted work it is closed then.
"""

from collections import Counter
from typing import Final, NamedTuple

from echo2.p2p.limits.counts import take_one
from echo2.p2p.limits.subnets import DIALS_BURST, DIALS_RATE, PeerLimits
from echo2.p2p.limits.token_bucket import TokenBuckets

HANDSHAKES_MIN: Final = 16
HANDSHAKE_GRACE: Final = 1.0


class ConnectionRefused(Exception):
    """A refused connection. `limit`: the limit's name, one word. `why`: a sentence."""

    def __init__(self, limit: str, why: str) -> None:
        super().__init__(why)
        self.limit = limit
        self.why = why


class _Connection(NamedTuple):
    household: str
    subnet: str | None
    known: bool
    since: float


class ConnectionAdmission:
    """The accepted connections, by any name that the caller gives them."""

    def __init__(self, limits: PeerLimits) -> None:
        self._limits = limits
        self._handshaking: dict[object, _Connection] = {}
        self._open: dict[object, _Connection] = {}
        self._of_subnet = Counter[str]()
        self._handshaking_of = Counter[str]()
        self._known_here = 0
        self._dials = TokenBuckets(DIALS_RATE, DIALS_BURST)
        self._dials_of_household = TokenBuckets(DIALS_RATE / 2, DIALS_BURST / 2)

    def admit(self, name: object, ip: str, open_now: int, now: float) -> object | None:
        """Count a connection that was accepted from `ip`; `open_now` connections have completed their handshakes.
        Return the name of the connection to evict for it, if any. Raises `ConnectionRefused`."""
        place = self._classify(ip, now)
        self._check_subnet(place, now)
        given_up = self._evict_for(place, open_now, now)
        if given_up is not None:
            self.on_connection_end(given_up)
        if place.subnet is not None:
            self._dials_of_household.consume(place.household, now)
            self._dials.consume(place.subnet, now)
        self._handshaking[name] = place
        self._handshaking_of[place.household] += 1
        self._known_here += place.known
        if place.subnet is not None:
            self._of_subnet[place.subnet] += 1
        return given_up

    def handshake_done(self, name: object, peer: str = "", open_now: int = 0) -> None:
        """Note that a connection completed its handshake, with a peer that proved its key. `open_now`: connections that
        have completed theirs, this one included. Raises `ConnectionRefused` (rule 4)."""
        place = self._handshaking.pop(name, None)
        if place is None:
            return
        take_one(self._handshaking_of, place.household)
        if place.subnet is None and peer in self._limits.parties.known:
            place = place._replace(known=True)
            self._known_here += 1
        self._open[name] = place
        if place.subnet is None and not place.known and open_now + self._free_reserve() > self._limits.connections:
            raise ConnectionRefused("reserved", "all other places are kept for nodes with accepted work")

    def on_connection_end(self, name: object) -> None:
        """Note that a connection ended or was evicted. Idempotent."""
        if (place := self._handshaking.pop(name, None)) is not None:
            take_one(self._handshaking_of, place.household)
        elif (place := self._open.pop(name, None)) is None:
            return
        self._known_here -= place.known
        if place.subnet is not None:
            take_one(self._of_subnet, place.subnet)

    def _classify(self, ip: str, now: float) -> _Connection:
        party = self._limits.parties.accept(ip)
        known = party.name in self._limits.parties.known
        return _Connection(party.household, party.name if party.is_public else None, known, now)

    def _check_subnet(self, place: _Connection, now: float) -> None:
        """Check rule 2. Raises `ConnectionRefused`."""
        household, subnet, most = place.household, place.subnet, self._limits.per_subnet
        if subnet is None:
            return
        if self._dials_of_household.delay(household, now) > 0:
            raise ConnectionRefused("address", f"{household} connects too often")
        if self._dials.delay(subnet, now) > 0:
            raise ConnectionRefused("subnet", f"{subnet} connects too often")
        if (handshakes := self._handshaking_of[household]) >= max(1, most // 2):
            raise ConnectionRefused("address", f"{household} has {handshakes} handshakes in progress")
        if self._of_subnet[subnet] >= most:
            raise ConnectionRefused("subnet", f"{subnet} has {most} connections already, the limit per subnet")

    def _evict_for(self, place: _Connection, open_now: int, now: float) -> object | None:
        """Return the connection to evict, by rules 1, 3 and 4. Raises `ConnectionRefused`."""
        most = self._limits.connections
        reserved = 0 if place.known or place.subnet is None else self._free_reserve()
        if open_now + len(self._handshaking) + reserved >= most:
            oldest = self._oldest_handshake(now - HANDSHAKE_GRACE)
            if oldest is None:
                raise ConnectionRefused(
                    "connections", f"{most} connections are open, the limit of this peer (setting connections)"
                )
            return oldest
        return self._oldest_handshake(now) if len(self._handshaking) >= max(HANDSHAKES_MIN, most // 4) else None

    def _free_reserve(self) -> int:
        """Return the number of free places that are reserved (rule 4)."""
        return max(0, min(self._limits.connections // 4, len(self._limits.parties.known)) - self._known_here)

    def _oldest_handshake(self, until: float) -> object | None:
        """Return the handshake that rule 3 evicts, if it began at `until` or before; None otherwise."""
        if not self._handshaking:
            return None
        crowded = max(self._handshaking_of.values())
        oldest = next(
            name for name, place in self._handshaking.items() if self._handshaking_of[place.household] == crowded
        )
        return oldest if self._handshaking[oldest].since <= until else None
