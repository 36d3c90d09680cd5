"""Attribute each request to an origin, so that one owner with many keys can be limited as one.

1. The party of a direct connection is that of its address (p2p/limits/party.py).
2. The party of a relayed peer is that of the address from which this host, which may be the peer's relay, saw it
   directly. If it never did, the party is the relay and the peer's key, or the key alone if it has accepted work.
3. A direct connection takes precedence over a relayed one. The origins of the last `MOST_PAST_ORIGINS` peers that
   disconnected are remembered, so that a peer's last request counts for the same party as those before.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from echo2.p2p.limits.party import Parties, is_subnet

MOST_PAST_ORIGINS: Final = 4096


class Origin(NamedTuple):
    """The origin of a request. `connection`: its peer id, or the client's name over HTTPS. `party`: the name that all
    connections of one owner share. `is_known`: whether the party has accepted work."""

    connection: str
    party: str
    is_known: bool = False


class _Place(NamedTuple):
    """The other end of a connection. `subnet`: None at a private address. `relay`: the relay's peer id; None for a
    direct connection."""

    subnet: str | None
    relay: str | None


LOCAL_ORIGIN = Origin("", "")
"""Origin of this process's own requests."""


class Origins:
    """The origins of the peers of one host. `of` may be called from any thread, the other methods from the host's
    own."""

    def __init__(self, parties: Parties) -> None:
        self._parties = parties
        self._open: dict[str, dict[object, _Place]] = {}
        self._known: OrderedDict[str, _Place] = OrderedDict()
        """Places of connected peers, and of those that disconnected last."""

    def of(self, peer: str) -> Origin:
        """Return the origin of a peer; of one that was never connected, its key."""
        place, party = self._known.get(peer), peer
        if place is not None and place.relay is None:
            party = self._parties.name(place.subnet, peer)
        elif place is not None and peer not in self._parties.known:
            party = f"{place.relay}/{peer}"
        return Origin(peer, party, party in self._parties.known)

    def on_connection(self, peer: str, connection: object, ip: str | None, relay: str) -> None:
        """Note a connection with a peer. `ip`: the other end's; None for a relayed connection. `relay`: the
        relay's peer id; "" without a relay."""
        place = _Place(None, relay) if ip is None else _Place(self._parties.subnet_of(ip), None)
        self._open.setdefault(peer, {})[connection] = place
        self._update(peer)

    def on_disconnection(self, peer: str, connection: object) -> None:
        left = self._open.get(peer, {})
        left.pop(connection, None)
        if left:
            self._update(peer)
            return
        self._open.pop(peer, None)
        if peer in self._known:
            self._known.move_to_end(peer)
        while len(self._known) > MOST_PAST_ORIGINS + len(self._open):
            oldest = next(iter(self._known))
            if oldest in self._open:
                self._known.move_to_end(oldest)
            else:
                del self._known[oldest]

    def _update(self, peer: str) -> None:
        place = min(self._open[peer].values(), key=lambda one: one.relay is not None)
        if place.relay is None or peer not in self._known:
            self._known[peer] = place


def unchosen(party: str) -> str:
    """Return the part of a party's name that its peers cannot choose: the subnet, or the relay without the peer."""
    return party if is_subnet(party) else party.partition("/")[0]
