"""Attribute each request to an origin, so that one owner with many keys can be limited as one.

Keys are free, connections and addresses are less so: a resource that many keys share is divided by origin.

1. The party of a direct connection, or of one over HTTPS, is its subnet (p2p/limits/subnets.py); at a private address
   it is the connection itself.
2. The party of a relayed peer is the subnet from which this host, which may be the peer's relay, saw it directly. If it
   never did, the party is the relay and the peer's key.
3. A direct connection takes precedence over a relayed one. The origins of the last `MOST_PAST_ORIGINS` peers that
   disconnected are remembered, so that a peer's last request counts for the same party as those before.
4. Of a connection that was just accepted only the address is known. So only parties that are subnets can be recognised
   then (`subnets_among`).
"""

import ipaddress
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from echo2.p2p.multiaddr import OVER_HTTPS

MOST_PAST_ORIGINS: Final = 4096

SubnetOf = Callable[[str], str | None]
"""Returns the subnet of an IP address; None for one that counts as private."""


class Origin(NamedTuple):
    """The origin of a request. `connection`: its peer id, or the client's name over HTTPS. `party`: the name that all
    connections of one owner share. `is_known`: whether the party has accepted work."""

    connection: str
    party: str
    is_known: bool = False


LOCAL_ORIGIN = Origin("", "")
"""Origin of this process's own requests."""


class Origins:
    """The origins of the peers of one host. `of` may be called from any thread, the other methods from the host's
    own."""

    def __init__(self, subnet_of: SubnetOf) -> None:
        self._subnet_of = subnet_of
        self._open: dict[str, dict[object, tuple[str | None, str]]] = {}
        self._known: OrderedDict[str, Origin] = OrderedDict()
        """Origins of connected peers, and of those that disconnected last."""
        self._with_work: frozenset[str] = frozenset()

    def keep(self, parties: Collection[str]) -> None:
        """Name the parties with accepted work; replaces those named before."""
        self._with_work = frozenset(parties)

    def of(self, peer: str) -> Origin:
        """Return the origin of a peer; of one that was never connected, its key."""
        party = self._known[peer].party if peer in self._known else peer
        return Origin(peer, party, party in self._with_work)

    def on_connection(self, peer: str, connection: object, ip: str | None, relay: str) -> None:
        """Note a connection with a peer. `ip`: the other end's; None for a relayed connection. `relay`: the
        relay's peer id; "" without a relay."""
        self._open.setdefault(peer, {})[connection] = ip, relay
        self._update(peer)

    def on_disconnection(self, peer: str, connection: object) -> None:
        """Note that a connection ended."""
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
        ip, relay = min(self._open[peer].values(), key=lambda one: one[0] is None)
        if ip is not None:
            self._known[peer] = Origin(peer, self._subnet_of(ip) or peer)
        elif peer not in self._known:
            self._known[peer] = Origin(peer, f"{relay}/{peer}")


def subnets_among(parties: Collection[str]) -> frozenset[str]:
    """Return the parties that are subnets (rule 4). The others name a peer, a relay and a peer, or a client's port."""
    return frozenset(party for party in parties if _is_subnet(party))


def _is_subnet(party: str) -> bool:
    try:
        ipaddress.ip_network(party)
    except ValueError:
        return False
    return "/" in party


def over_https(host: str, port: int, subnet_of: SubnetOf) -> str:
    """Return the name of a requester over HTTPS: its address. At a private address the port is added, which tells apart
    the machines behind one proxy."""
    return f"{OVER_HTTPS}{host}" if subnet_of(host) is not None else f"{OVER_HTTPS}{host}/{port}"


def origin_over_https(name: str, subnet_of: SubnetOf, with_work: Collection[str] = ()) -> Origin:
    """Return the origin of a requester with this name. `with_work`: the parties with accepted work."""
    party = subnet_of(name.removeprefix(OVER_HTTPS).partition("/")[0]) or name
    return Origin(name, party, party in with_work)


def unchosen(party: str) -> str:
    """Return the part of a party's name that its peers cannot choose: the subnet, or the relay without the peer."""
    return party if subnets_among([party]) else party.partition("/")[0]
