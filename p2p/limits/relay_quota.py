"""What a relay grants, and what it refuses. Pure: the time is an argument.

A relay passes the encrypted bytes of one connection between two peers that cannot reach each other. It must not become
everyone's uplink unawares, so

1. Whoever wants to be reached through this peer reserves first; a peer has one reservation, and asking again renews it.
   It ends with its time, or with the connection of its holder.
2. A subnet (p2p/limits/subnets.py; a private network counts as none) holds a bounded share of the reservations: many
   identities at one place do not fill the table. So is what one peer may have open, as source and as target.
3. All circuits together pass at most `rate` bytes a second, both directions counted; what waits, waits in turn, so that
   control and gossip pass beside bulk.
4. A circuit ends after `data` bytes or `duration` seconds. Its two ends dial again if they still need it.
"""

from collections import Counter
from enum import Enum

import msgspec

from p2p.limits.bandwidth import bandwidth
from p2p.limits.subnets import subnet_of
from runtime.units import MBIT


class RelayLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`reservations`, `circuits`: in all. `per_subnet`: reservations of one subnet. `per_peer`: circuits that one peer
    may have as source, and as target. `life`: seconds of a reservation. `duration`: seconds, and `data`: bytes, of a
    circuit. `rate`: bytes per second of all circuits together."""

    reservations: int = 64
    per_subnet: int = 16
    circuits: int = 64
    per_peer: int = 8
    life: float = 1800.0
    duration: float = 3600.0
    data: int = 1 << 30
    rate: float = 8 * MBIT


class RelayRefusal(Enum):
    """Why not."""

    FULL = "the relay is full"
    CROWDED = "too many of one subnet"
    NO_RESERVATION = "the target has no reservation here"
    TOO_MANY = "this peer has too many circuits"


class RelayRefused(Exception):
    """What was asked is not granted."""

    def __init__(self, why: RelayRefusal) -> None:
        super().__init__(why.value)
        self.why = why


class RelayTable:
    """Reservations and circuits of one relay, and the one bucket that all its circuits share."""

    def __init__(self, limits: RelayLimits) -> None:
        self.limits = limits
        self.bucket = bandwidth(limits.rate)
        self._reservations: dict[str, tuple[float, str | None]] = {}
        self._circuits: Counter[tuple[str, str]] = Counter()

    @property
    def circuits(self) -> int:
        """Open ones."""
        return self._circuits.total()

    def holders(self, now: float) -> list[str]:
        """Peers with a reservation."""
        self._expire(now)
        return list(self._reservations)

    def reserve(self, peer: str, ip: str | None, now: float) -> float:
        """Grant or renew; the time at which it ends. `ip`: where the peer connects from. Raises `RelayRefused`."""
        self._expire(now)
        place = subnet_of(ip) if ip is not None else None
        others = [subnet for holder, (_, subnet) in self._reservations.items() if holder != peer]
        if len(others) >= self.limits.reservations:
            raise RelayRefused(RelayRefusal.FULL)
        if place is not None and others.count(place) >= self.limits.per_subnet:
            raise RelayRefused(RelayRefusal.CROWDED)
        self._reservations[peer] = now + self.limits.life, place
        return now + self.limits.life

    def forget(self, peer: str) -> None:
        """The holder's connection has ended, and its reservation with it."""
        self._reservations.pop(peer, None)

    def open(self, source: str, target: str, now: float) -> "Circuit":
        """A circuit between two peers. Raises `RelayRefused`."""
        self._expire(now)
        if target not in self._reservations:
            raise RelayRefused(RelayRefusal.NO_RESERVATION)
        if self.circuits >= self.limits.circuits:
            raise RelayRefused(RelayRefusal.FULL)
        from_source = sum(n for (one, _), n in self._circuits.items() if one == source)
        to_target = sum(n for (_, one), n in self._circuits.items() if one == target)
        if max(from_source, to_target) >= self.limits.per_peer:
            raise RelayRefused(RelayRefusal.TOO_MANY)
        self._circuits[source, target] += 1
        return Circuit(self, source, target, now)

    def _close(self, source: str, target: str) -> None:
        self._circuits[source, target] -= 1
        if not self._circuits[source, target]:
            del self._circuits[source, target]

    def _expire(self, now: float) -> None:
        self._reservations = {
            peer: reservation for peer, reservation in self._reservations.items() if reservation[0] > now
        }


class Circuit:
    """One relayed connection: what is left of it."""

    def __init__(self, table: RelayTable, source: str, target: str, now: float) -> None:
        self._table, self._ends = table, (source, target)
        self._left = table.limits.data
        self.deadline = now + table.limits.duration
        self._open = True

    def consume(self, size: int, now: float) -> float | None:
        """Seconds to wait before `size` bytes may pass; None when the circuit is used up."""
        self._left -= size
        if self._left < 0 or now >= self.deadline:
            return None
        wait = self._table.bucket.delay(0, now)
        self._table.bucket.consume(size, now)
        return wait

    def close(self) -> None:
        """It has ended. Closing twice is closing once."""
        if self._open:
            self._open = False
            self._table._close(*self._ends)
