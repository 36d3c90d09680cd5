"""Say who a party is: the addresses, connections and keys that share limits.

Keys are free, addresses less so: what many keys of one owner share is divided by party.

1. The party of a public address is its subnet, an IPv4 /24 or an IPv6 /48: about the block that one owner gets. Inside
   it, a *household* is an IPv4 address, or an IPv6 /64.
2. All private and loopback addresses together are one party, `PRIVATE`, where the run has public addresses: behind a
   proxy that hides its clients everybody seems private. Where it has none, as in a LAN, each connection is a party of
   its own. It has some if it is reached at one or by a name, if a public address has connected,
   or if a proxy is trusted.
3. A key with accepted work at a private address, or behind a relay, is a party of its own in any case: it is named by
   its peer id.
4. A proxy that `TrustedProxies` names says for whom it connects (p2p/limits/proxy_header.py); of all others the
   address of the connection counts.
5. Each entrance (libp2p, HTTPS, page) asks the same `Parties`, so a subnet or a key is one party at all of them.
"""

import ipaddress
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from echo2.p2p.multiaddr import address_of

PRIVATE: Final = "private"
SubnetOf = Callable[[str], str | None]
"""Returns the subnet of an IP address; None for one that counts as private."""


@lru_cache(4096)
def subnet_of(ip: str) -> str | None:
    """Return the subnet of a public address, as text (rule 1); None for any other."""
    address = _address(ip)
    if address is None or not address.is_global:
        return None
    return str(ipaddress.ip_network((address, 24 if address.version == 4 else 48), strict=False))


@lru_cache(4096)
def household_of(ip: str) -> str:
    """Return the part of an address that one household has (rule 1)."""
    if (address := _address(ip)) is None:
        return ip
    return str(address if address.version == 4 else ipaddress.ip_network((address, 64), strict=False))


def is_subnet(party: str) -> bool:
    """Tell whether a party's name is that of a subnet; others name a peer, a relay and a peer, or a connection."""
    return "/" in party and _address(party.partition("/")[0]) is not None


def _address(ip: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(ip.partition("%")[0])
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, ipaddress.IPv6Address) else address


class TrustedProxies:
    """The proxies that say for whom they connect (rule 4). `networks`: addresses, or networks as 10.0.0.0/8."""

    def __init__(self, networks: Sequence[str] = ()) -> None:
        """Raises `ValueError`."""
        self._networks = [ipaddress.ip_network(network) for network in networks]
        if everybody := next((network for network in self._networks if not network.prefixlen), None):
            raise ValueError(f"{everybody} is everybody")

    def __contains__(self, ip: str) -> bool:
        address = _address(ip)
        return address is not None and any(address in network for network in self._networks)

    def client_of(self, ip: str, forwarded: Sequence[str]) -> str:
        """Return the client's address by the headers X-Forwarded-For of a request from `ip`, in order: the last address
        that is no trusted proxy's."""
        for hop in reversed([hop.strip() for header in forwarded for hop in header.split(",")]):
            if ip not in self or _address(hop) is None:
                break
            ip = hop
        return ip


class Party(NamedTuple):
    """A party, as far as an address tells. `name`: the subnet, or `PRIVATE`; empty where the connection is the party.
    `household`: the address, or its /64."""

    name: str
    household: str

    @property
    def is_public(self) -> bool:
        """Tell whether it is a subnet."""
        return self.name not in ("", PRIVATE)


class Parties:
    """The parties at all entrances of a process. Its methods may be called from any thread."""

    def __init__(
        self, subnet_of: SubnetOf = subnet_of, *, proxies: Sequence[str] = (), private_is_one: bool = False
    ) -> None:
        """`subnet_of`: tests may treat loopback addresses as public. `proxies`: see `TrustedProxies`. `private_is_one`:
        whether rule 2 joins private addresses where the run has public ones; False: each connection at one is a party
        of its own. Raises `ValueError`."""
        self.subnet_of = subnet_of
        self.proxies = TrustedProxies(proxies)
        self._may_join = private_is_one
        self._has_public = bool(proxies)
        self.known: frozenset[str] = frozenset()
        """Names of parties with accepted work: subnets and peer ids."""
        self.known_subnets = 0
        """Number of subnets among them."""
        self.accepted = Counter[bool]()
        """Accepted connections, by whether their address is public."""

    @property
    def private_is_one(self) -> bool:
        """Tell whether all private addresses are one party now (rule 2)."""
        return self._may_join and self._has_public

    def tell_addresses(self, addresses: Sequence[str]) -> None:
        """Note under which addresses this host is reached (rule 2): a name counts as public."""
        self._has_public = self._has_public or any(
            parsed.is_named or self.subnet_of(parsed.host) for parsed in map(address_of, addresses)
        )

    def keep(self, known: Collection[str]) -> None:
        """Name the parties with accepted work; replaces those named before."""
        self.known, self.known_subnets = frozenset(known), sum(map(is_subnet, known))

    def accept(self, ip: str) -> Party:
        """Return the party of a node's connection that was just accepted, and count it."""
        party = self.at(ip)
        self.accepted[party.is_public] += 1
        self._has_public = self._has_public or party.is_public
        return party

    def at(self, ip: str) -> Party:
        return Party(self.subnet_of(ip) or (PRIVATE if self.private_is_one else ""), household_of(ip))

    def name(self, subnet: str | None, connection: str) -> str:
        """Return the name of the party of a connection. `subnet`: that of its address; None at a private one.
        `connection`: the peer id of its key, once the key is proved; else a name of the connection."""
        if subnet is not None:
            return subnet
        return PRIVATE if self.private_is_one and connection not in self.known else connection
