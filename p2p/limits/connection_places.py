"""Which connections of others are taken in, from their acceptance on. Pure: `now` in seconds, monotonic.

1. A connection has a place from its acceptance to its end. It is counted before the handshake, which costs us more than
   the other side.
2. Of a public subnet (p2p/limits/subnets.py) at most `per_subnet` are open or in their handshake, and `DIALS_BURST` may
   come at once, then `DIALS_RATE` a second. Of that one address may have a half, in handshakes and in connections that
   come. A machine's own addresses and private networks are not counted: a hall of GPUs behind one switch is no attack.
3. At most a quarter of the places, at least `SHAKING`, are in their handshakes. One more takes the place of one of the
   address that has most of them, the one that has been longest in its handshake: silence fills nothing. So it is where
   no place is free at all, if that one has been at it for `SILENCE`.
4. A quarter of the places is kept for the addresses of parties with accepted work, as many as there are such: strangers
   cannot keep them out.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from p2p.limits.subnets import DIALS_BURST, DIALS_RATE, PeerLimits, client_key
from p2p.limits.token_bucket import TokenBuckets

HANDSHAKES_MIN: Final = 16
HANDSHAKE_GRACE: Final = 1.0
"""Seconds."""


class ConnectionRefused(Exception):
    """A connection is not taken in. `limit`: a word. `why`: a sentence."""

    def __init__(self, limit: str, why: str) -> None:
        super().__init__(why)
        self.limit, self.why = limit, why


@dataclass(frozen=True)
class _Connection:
    address: str
    subnet: str | None
    known: bool
    since: float


class ConnectionAdmission:
    """Connections that were accepted, by any name that the caller gives them."""

    def __init__(self, limits: PeerLimits) -> None:
        self._limits = limits
        self._handshaking: dict[object, _Connection] = {}
        self._open: dict[object, _Connection] = {}
        self._of_subnet, self._handshaking_of = Counter[str](), Counter[str]()
        self._known: frozenset[str] = frozenset()
        self._known_here = 0
        self._dials = TokenBuckets(DIALS_RATE, DIALS_BURST)
        self._dials_of_address = TokenBuckets(DIALS_RATE / 2, DIALS_BURST / 2)

    @property
    def handshakes(self) -> int:
        """Connections in their handshakes."""
        return len(self._handshaking)

    def keep(self, parties: Collection[str]) -> None:
        """Keep places for the addresses of these parties from now on."""
        self._known = frozenset(parties)

    def admit(self, name: object, ip: str, open_now: int, now: float) -> object | None:
        """Count a connection that was accepted from `ip`, where `open_now` have done their handshakes. Return the name
        of the one that is given up for it, if any. Raises `ConnectionRefused`."""
        place = self._classify(ip, now)
        self._check_subnet(place, now)
        given_up = self._evict_for(place, open_now, now)
        if given_up is not None:
            self.closed(given_up)
        if place.subnet is not None:
            self._dials_of_address.consume(place.address, now)
            self._dials.consume(place.subnet, now)
        self._handshaking[name] = place
        self._handshaking_of[place.address] += 1
        self._known_here += place.known
        if place.subnet is not None:
            self._of_subnet[place.subnet] += 1
        return given_up

    def handshake_done(self, name: object) -> None:
        """A connection's handshake is done."""
        place = self._handshaking.pop(name, None)
        if place is not None:
            _decrement(self._handshaking_of, place.address)
            self._open[name] = place

    def closed(self, name: object) -> None:
        """A connection ended, or was given up. Telling it twice is telling it once."""
        if (place := self._handshaking.pop(name, None)) is not None:
            _decrement(self._handshaking_of, place.address)
        elif (place := self._open.pop(name, None)) is None:
            return
        self._known_here -= place.known
        if place.subnet is not None:
            _decrement(self._of_subnet, place.subnet)

    def _classify(self, ip: str, now: float) -> _Connection:
        subnet = self._limits.subnet_of(ip)
        return _Connection(client_key(ip), subnet, (subnet or ip) in self._known, now)

    def _check_subnet(self, place: _Connection, now: float) -> None:
        """Rule 2. Raises `ConnectionRefused`."""
        address, subnet, most = place.address, place.subnet, self._limits.per_subnet
        if subnet is None:
            return
        if self._dials_of_address.delay(address, now) > 0:
            raise ConnectionRefused("address", f"{address} connects too often")
        if self._dials.delay(subnet, now) > 0:
            raise ConnectionRefused("subnet", f"{subnet} connects too often")
        if self._handshaking_of[address] >= max(1, most // 2):
            raise ConnectionRefused("address", f"{address} has {self._handshaking_of[address]} handshakes under way")
        if self._of_subnet[subnet] >= most:
            raise ConnectionRefused(
                "subnet", f"{subnet} has {most} connections already, the most that one subnet may have"
            )

    def _evict_for(self, place: _Connection, open_now: int, now: float) -> object | None:
        """Rules 1, 3 and 4. Raises `ConnectionRefused`."""
        most = self._limits.connections
        if open_now + len(self._handshaking) + self._reserved_from(place) >= most:
            oldest = self._oldest_handshake(now - HANDSHAKE_GRACE)
            if oldest is None:
                raise ConnectionRefused(
                    "connections", f"{most} are open, the most that this peer takes (setting connections)"
                )
            return oldest
        return self._oldest_handshake(now) if len(self._handshaking) >= max(HANDSHAKES_MIN, most // 4) else None

    def _reserved_from(self, place: _Connection) -> int:
        """Rule 4: places that this one may not take."""
        if place.known:
            return 0
        return max(0, min(self._limits.connections // 4, len(self._known)) - self._known_here)

    def _oldest_handshake(self, until: float) -> object | None:
        """The one to give up, which began its handshake at `until` or before."""
        if not self._handshaking:
            return None
        crowded = max(self._handshaking_of.values())
        oldest = next(
            name for name, place in self._handshaking.items() if self._handshaking_of[place.address] == crowded
        )
        return oldest if self._handshaking[oldest].since <= until else None


def _decrement(counter: Counter[str], name: str) -> None:
    counter[name] -= 1
    if not counter[name]:
        del counter[name]
