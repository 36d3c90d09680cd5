"""Multiaddresses: parse each one into a value, `Address`, that answers every question about it. Pure.

    /ip4/192.0.2.1/tcp/4310/p2p/PEER                                   dialled directly
    /ip4/192.0.2.1/tcp/4310/p2p/RELAY/p2p-circuit/p2p/PEER             dialled through a relay
    /dns4/coord.example/tcp/4311/https/p2p/PEER                        reached over HTTPS

1. An address is a chain of components, `/NAME/VALUE` or `/NAME`. The table of the `multiaddr` library defines the
   names, and which of them have a value. Text that breaks this grammar is `Malformed`.
2. Parsing checks no value: host, port and peer ID may be any text, or empty. `ip` and `port` check theirs on access,
   the binary form checks all of them. Parsing takes about 1 us; the library, which checks all, takes 20 us.
3. Most addresses come from unknown peers, as hints. `address_of` never fails: text that is no multiaddress becomes an
   address without components. It has no peer, host or port, and cannot be dialled.
4. The last `PARSED_ADDRESSES` addresses stay parsed in memory, except those longer than `KEPT_CHARACTERS` or with more
   than `KEPT_SLASHES` slashes, with which a peer could fill this memory.
"""

import ipaddress
from functools import cache, lru_cache
from typing import Final, Literal, NamedTuple, get_args

from echo2.p2p.errors import Malformed, Unreachable

MOST_ADDRESSES: Final = 16
"""Most addresses in an invite or a Head."""
MOST_ADDRESS_CHARACTERS: Final = 1024
PARSED_ADDRESSES: Final = 4096
KEPT_CHARACTERS: Final = 256
KEPT_SLASHES: Final = 32
Route = Literal["direct", "relay", "https"]
ROUTES: Final[tuple[Route, ...]] = get_args(Route)
"""The routes to a peer, the best one first."""
OVER_HTTPS: Final = "https/"
"""Prefix of a requester's name over HTTPS; an IP address follows. Only the signature in its request identifies it
further."""
_IP_KINDS: Final[dict[str, type[ipaddress.IPv4Address] | type[ipaddress.IPv6Address]]] = {
    "ip4": ipaddress.IPv4Address,
    "ip6": ipaddress.IPv6Address,
}
_NAMED_HOSTS: Final = ("dns", "dns4", "dns6")


class Address(NamedTuple):
    """A parsed multiaddress. `text`: text as written. `components`: (name, value), "" for no value."""

    text: str
    components: tuple[tuple[str, str], ...]

    @property
    def route(self) -> Route:
        names = dict(self.components)
        return "relay" if "p2p-circuit" in names else "https" if "https" in names else "direct"

    @property
    def peer(self) -> str:
        """The peer ID at the end; "" if there is none."""
        return self.components[-1][1] if self.components and self.components[-1][0] == "p2p" else ""

    @property
    def peers(self) -> list[str]:
        """Every peer ID: the relay, then the peer behind it."""
        return [value for name, value in self.components if name == "p2p"]

    @property
    def relay(self) -> str | None:
        """The relay's peer ID, "" if the relay has none; None for an address without a relay."""
        return self.before_circuit.peer if self.route == "relay" else None

    @property
    def before_circuit(self) -> "Address":
        """The relay's own address; the whole address if there is no relay."""
        return self._before("p2p-circuit")

    @property
    def endpoint(self) -> str:
        """The text before the first peer ID: the host and port to dial."""
        return self._before("p2p").text

    @property
    def kind(self) -> str:
        """The name of the first component, such as ip4; "" if there is none."""
        return self.components[0][0] if self.components else ""

    @property
    def host(self) -> str:
        """The value of the first component: an IP address or a name; "" if there is none."""
        return self.components[0][1] if self.components else ""

    @property
    def ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        """The host, with its zone, if it is an IP address of the stated kind; None otherwise."""
        read = _IP_KINDS.get(self.kind)
        try:
            return read(self.host) if read is not None else None
        except ValueError:
            return None

    @property
    def port(self) -> int | None:
        """The TCP port, if a valid one directly follows the host; None otherwise."""
        name, text = self.components[1] if len(self.components) > 1 else ("", "")
        if name != "tcp" or len(text) > 5 or not (text.isascii() and text.isdecimal()):
            return None
        return number if (number := int(text)) < 1 << 16 else None

    @property
    def is_listening(self) -> bool:
        """Whether it is a listening address: /ip4/HOST/tcp/PORT or /ip6/HOST/tcp/PORT, and nothing else."""
        return len(self.components) == 2 and self.ip is not None and self.port is not None

    @property
    def https_url(self) -> str | None:
        """The origin of an HTTPS address, without a trailing slash; None for any other address."""
        is_host = self.is_named or (self.kind in _IP_KINDS and self.host != "")
        if not is_host or self.port is None or [name for name, _ in self.components[2:3]] != ["https"]:
            return None
        return f"https://[{self.host}]:{self.port}" if self.kind == "ip6" else f"https://{self.host}:{self.port}"

    @property
    def is_named(self) -> bool:
        return self.kind in _NAMED_HOSTS and self.host != ""

    @property
    def split_host(self) -> tuple[str, str]:
        """The text of the first component, and the rest."""
        first = _from_components(self.components[:1]).text
        return first, self.text[len(first) :]

    def at(self, host: str) -> "Address":
        """Return the same address at another host of this kind."""
        first, *others = self.components
        return _from_components([(first[0], host), *others])

    def _before(self, name: str) -> "Address":
        """Return the components before the first one of this name."""
        for place, (one, _) in enumerate(self.components):
            if one == name:
                return _from_components(self.components[:place])
        return self


def parse(text: str) -> Address:
    """Parse an address by rule 1. Raises `Malformed`."""
    if len(text) > MOST_ADDRESS_CHARACTERS:
        raise Malformed(f"multiaddress of {len(text)} characters, at most {MOST_ADDRESS_CHARACTERS} are accepted")
    words, table = text.split("/"), _has_value()
    if words[0] or len(words) < 2:
        raise Malformed(f"{text[:80]!r} is no multiaddress: it must begin with a slash")
    components, place = [], 1
    while place < len(words):
        name = words[place]
        has_value = table.get(name)
        if has_value is None:
            raise Malformed(f"{text[:80]!r} is no multiaddress: there is no component {name[:40]!r}")
        if has_value and place + 1 == len(words):
            raise Malformed(f"{text[:80]!r} is no multiaddress: {name} has no value")
        components.append((name, words[place + 1] if has_value else ""))
        place += 1 + has_value
    return Address(text, tuple(components))


def address_of(text: str) -> Address:
    """Parse an untrusted address (rules 3 and 4)."""
    return _kept(text) if is_short(text) else _parse_leniently(text)


def is_short(text: str) -> bool:
    """Tell whether an address is short enough to be kept in memory (rule 4)."""
    return len(text) <= KEPT_CHARACTERS and text.count("/") <= KEPT_SLASHES


@cache
def _has_value() -> dict[str, bool]:
    """Return the names of components, and whether each has a value; `--help` and `status` do not load the library."""
    from echo2._libp2p.multiaddr.protocols import PROTOCOLS

    return {protocol.name: protocol.codec is not None for protocol in PROTOCOLS}


def _parse_leniently(text: str) -> Address:
    try:
        return parse(text)
    except Malformed:
        return Address(text, ())


_kept = lru_cache(maxsize=PARSED_ADDRESSES)(_parse_leniently)


def pack(text: str) -> bytes:
    """Return the binary form of an address. Raises `Malformed`."""
    from echo2._libp2p.multiaddr import Multiaddr

    try:
        return bytes(Multiaddr(text).to_bytes())
    except (ValueError, LookupError) as error:
        raise Malformed(f"{text[:80]!r} has no binary form: {error}") from None


def unpack(packed: bytes) -> str:
    """Return the text of an address in binary form. Raises `Malformed`."""
    from echo2._libp2p.multiaddr import Multiaddr

    try:
        text = str(Multiaddr(packed))
        whole = Multiaddr(text).to_bytes() == packed  # the library reads missing bytes as zeros
    except Exception as error:  # its codecs raise errors of many types
        raise Malformed(f"no multiaddress in binary form: {error!r}") from None
    if not whole:
        raise Malformed("truncated multiaddress in binary form")
    return text


def tcp(host: str, port: int, peer: str = "") -> str:
    """Return the address of a TCP port at the IP address `host`; it ends in `peer` if given. Raises `Unreachable` for a
    host that is no IP address."""
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        raise Unreachable(f"{host!r} is no IP address") from None
    return f"/ip{version}/{host}/tcp/{port}" + (f"/p2p/{peer}" if peer else "")


def through(relay: str, peer: str) -> str:
    """Return the address of `peer` behind the relay with this address."""
    return f"{relay}/p2p-circuit/p2p/{peer}"


def is_open_port(port: int | None) -> bool:
    """Tell whether a port may be dialled on the word of others: 443, or 1024 and above. So no record, Head or invite
    aims dials at system services."""
    return port is not None and (port >= 1024 or port == 443)


def with_peer(address: str, peer: str) -> str:
    """Return an address with the peer ID at its end, unless it has one already."""
    return address if address_of(address).peers else f"{address}/p2p/{peer}"


def route_of(address: str) -> Route:
    return address_of(address).route


def peer_of(address: str) -> str:
    """Return the peer ID at the end of an address; "" if there is none."""
    return address_of(address).peer


def route_of_requester(peer: str) -> Route:
    """Return "https" for a request over HTTPS, "direct" for one over libp2p, also through a relay. `peer`: the
    requester's name as its handler gets it."""
    return "https" if peer.startswith(OVER_HTTPS) else "direct"


def _from_components(components: "tuple[tuple[str, str], ...] | list[tuple[str, str]]") -> Address:
    text = "".join(f"/{name}/{value}" if _has_value()[name] else f"/{name}" for name, value in components)
    return Address(text, tuple(components))
