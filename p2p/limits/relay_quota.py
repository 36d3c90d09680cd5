"""The quotas of a relay: grant or refuse reservations and circuits. Pure: `now` in seconds, monotonic.

A relay forwards the encrypted bytes of one connection between two peers that cannot reach each other. These rules bound
the share of its owner's uplink that is spent on others:

1. A peer must reserve before it can be reached through this relay. It has one reservation, and reserving again renews
   it. A reservation ends when it expires, or with the connection of its holder.
2. Each party (p2p/limits/party.py) has a bounded share of the reservations: many identities in one subnet do not fill
   the table. A quarter of the reservations, at most one per party, is kept for parties with accepted work.
3. A peer has at most `per_peer` circuits as a source. All circuits, and those to one target, are divided among the
   sources' parties by p2p/limits/shares.py, with the same quarter: where there is no room for a new one, the oldest
   circuit of the party with most ends. So circuits that stand idle for an hour keep out nobody. To a party that has as
   many no circuit gives way in its first `SETTLED_SECONDS` seconds: ends that dial again do not end one another's.
4. All circuits together carry at most `rate` bytes per second, both directions counted. Delayed pieces leave in the
   order of their arrival, at most one per circuit and direction, so that small messages pass beside bulk data.
5. A circuit ends after `data` bytes or `duration` seconds. Its two ends dial again if they still need it.
"""

from collections import Counter
from collections.abc import Callable, Collection
from typing import Final

import msgspec

from echo2.p2p.limits.bandwidth import Rate, bandwidth
from echo2.p2p.limits.counts import take_one
from echo2.p2p.limits.origin import Origin
from echo2.p2p.limits.party import Parties
from echo2.p2p.limits.shares import Shares
from echo2.runtime.units import MBIT

RELAYED_RATE: Final = 8 * MBIT
"""Bytes per second of all circuits together, unless the owner says otherwise."""
PUNCHES: Final = 4
"""Connections through a relay that are made direct ones at a time (p2p/libp2p/hole_punch.py)."""
PUNCH_BURST, PUNCH_EACH = 6.0, 60.0
"""Rounds of that per peer at once; then seconds per further round."""


class RelayLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a relay. `reservations`, `circuits`: reservations and circuits in total. `per_party`: reservations
    per party. `per_peer`, `per_target`: circuits that one peer may have as source, and as target. `life`: seconds of a
    reservation. `duration`: seconds, and `data`: bytes, of a circuit. `rate`: rate of all circuits together."""

    reservations: int = 64
    per_party: int = 16
    circuits: int = 64
    per_peer: int = 8
    per_target: int = 8
    life: float = 1800.0
    duration: float = 3600.0
    data: int = 1 << 30
    rate: Rate = RELAYED_RATE


SETTLED_SECONDS: Final = 60.0
"""Seconds before a circuit gives way to one of a party that has as many."""


class RelayRefused(Exception):
    """A refused reservation or circuit. `status`: the protocol's name for the reason."""

    def __init__(self, status: str, why: str) -> None:
        super().__init__(why)
        self.status = status


class RelayTable:
    """Reservations and circuits of one relay, and the token bucket that all its circuits share."""

    def __init__(self, limits: RelayLimits, parties: Parties | None = None) -> None:
        self.limits = limits
        self._parties = parties or Parties()
        self.bucket = bandwidth(limits.rate)
        self._reservations: dict[str, tuple[float, str]] = {}
        self._circuits = Shares[Circuit](limits.circuits, limits.circuits)
        self._to_target: dict[str, Shares[Circuit]] = {}
        self._of_source = Counter[str]()

    @property
    def circuits(self) -> int:
        return self._circuits.total

    def reserve(self, peer: str, ip: str | None, now: float) -> float:
        """Grant or renew a reservation; return when it expires. `ip`: the peer's address. Raises `RelayRefused`."""
        self._expire(now)
        party = self._party(peer, ip)
        others = [other for holder, (_, other) in self._reservations.items() if holder != peer]
        if len(others) + self._kept_from(peer, party) >= self.limits.reservations:
            raise RelayRefused("RESOURCE_LIMIT_EXCEEDED", "the relay is full")
        if others.count(party) >= self.limits.per_party:
            raise RelayRefused("RESERVATION_REFUSED", "too many of one party")
        self._reservations[peer] = now + self.limits.life, party
        return now + self.limits.life

    def _kept_from(self, peer: str, party: str) -> int:
        """Return the number of free places that are kept from this peer (rule 2)."""
        known = self._parties.known
        if peer in self._reservations or {peer, party} & known:
            return 0
        here = sum(not known.isdisjoint((holder, of)) for holder, (_, of) in self._reservations.items())
        return max(0, min(self.limits.reservations // 4, len(known)) - here)

    def keep(self, connected: Collection[str]) -> None:
        """Remove the reservations of peers that are not connected (rule 1)."""
        self._reservations = {peer: one for peer, one in self._reservations.items() if peer in connected}

    def open(self, source: str, target: str, now: float, ip: str | None = None) -> "Circuit":
        """Open a circuit between two peers; others may end for it (rule 3). `ip`: the source's address. Raises
        `RelayRefused`."""
        self._expire(now)
        if target not in self._reservations:
            raise RelayRefused("NO_RESERVATION", "the target has no reservation here")
        if self._of_source[source] >= self.limits.per_peer:
            raise RelayRefused("RESOURCE_LIMIT_EXCEEDED", "this peer has too many circuits")
        self._of_source[source] += 1
        party = self._party(source, ip)
        circuit = Circuit(self, Origin(source, party, party in self._parties.known), target, now)
        most = self.limits.per_target
        self._occupy(self._to_target.setdefault(target, Shares(most, most)), most, circuit, now)
        if circuit.is_open:
            self._occupy(self._circuits, self.limits.circuits, circuit, now)
        if not circuit.is_open:
            raise RelayRefused("RESOURCE_LIMIT_EXCEEDED", "the relay is full")
        return circuit

    def _occupy(self, pool: "Shares[Circuit]", most: int, circuit: "Circuit", now: float) -> None:
        pool.strangers = most - min(most // 4, len(self._parties.known))
        for crowded in pool.occupy(circuit, circuit.origin, 1):
            is_equal = crowded.origin.is_known == circuit.origin.is_known
            is_equal &= pool.of_party(crowded) == pool.of_party(circuit)
            settled = crowded.origin.party == circuit.origin.party or now >= crowded.began + SETTLED_SECONDS
            (circuit if is_equal and not settled else crowded).close()

    def on_end(self, circuit: "Circuit", source: str, target: str) -> None:
        """Note that a circuit has ended."""
        take_one(self._of_source, source)
        self._circuits.leave(circuit)
        if (to_target := self._to_target.get(target)) is not None:
            to_target.leave(circuit)
            if not to_target.total:
                del self._to_target[target]

    def _party(self, peer: str, ip: str | None) -> str:
        if ip is None or peer in self._parties.known:
            return peer
        return self._parties.name(self._parties.subnet_of(ip), peer)

    def _expire(self, now: float) -> None:
        self._reservations = {peer: one for peer, one in self._reservations.items() if one[0] > now}


class Circuit:
    """One relayed connection, and the rest of its quota. `on_close`: called when it has to end."""

    def __init__(self, table: RelayTable, origin: Origin, target: str, now: float) -> None:
        """`origin`: that of its source."""
        self._table = table
        self.origin, self._target, self.began = origin, target, now
        self._left = table.limits.data
        self.deadline = now + table.limits.duration
        self.is_open = True
        self.on_close: Callable[[], object] = lambda: None

    def consume(self, size: int, now: float) -> float | None:
        """Return the seconds to wait before `size` bytes may pass; None once the quota is used up or the deadline has
        passed."""
        self._left -= size
        if self._left < 0 or now >= self.deadline:
            return None
        wait = self._table.bucket.delay(0, now)
        self._table.bucket.consume(size, now)
        return wait

    def close(self) -> None:
        """Give the circuit back to the table, and end it. Idempotent."""
        if self.is_open:
            self.is_open = False
            self._table.on_end(self, self.origin.connection, self._target)
            self.on_close()
