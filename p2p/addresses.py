"""Which addresses others can dial, from the ones that a peer listens on; and by which way each one leads.

Addresses are multiaddresses: /ip4/192.0.2.1/tcp/4310 is dialled directly, one with /p2p-circuit through a relay, and
/dns4/coord.example/tcp/4311/https by plain HTTPS. The peer id stands at the end: /p2p/12D3Koo...
"""

import ipaddress
import socket
from collections.abc import Iterable, Sequence
from typing import Final, Literal, get_args

import psutil

MOST = 16
"""Addresses in an invite or a Head."""
Way = Literal["direct", "relay", "https"]
WAYS: Final[tuple[Way, ...]] = get_args(Way)
"""How a peer may be reached, the best way first."""
OVER_HTTPS: Final = "https/"
"""Begins the name of an asker whom only the signature in its request tells more about; an IP address follows."""
_HOSTS = ("ip4", "ip6", "dns", "dns4", "dns6")
_KINDS = {"ip4": socket.AF_INET, "ip6": socket.AF_INET6}


def way_of(address: str) -> Way:
    """The way by which an address leads."""
    parts = address.split("/")
    return "relay" if "p2p-circuit" in parts else "https" if "https" in parts else "direct"


def peer_of(address: str) -> str:
    """The peer id at the end of an address."""
    return address.rpartition("/p2p/")[2]


def way_of_asker(peer: str) -> Way:
    """The way by which a request came, from what its handler is told of the asker."""
    return "https" if peer.startswith(OVER_HTTPS) else "direct"


def https_url(address: str) -> str | None:
    """The origin of an HTTPS address, without a slash at the end; None where it is none."""
    match address.split("/"):
        case ["", kind, host, "tcp", port, "https", *_] if kind in _HOSTS and host and port.isdecimal():
            return f"https://[{host}]:{port}" if kind == "ip6" else f"https://{host}:{port}"
    return None


def is_listening(address: str) -> bool:
    """Whether one can listen there: /ip4/HOST/tcp/PORT or /ip6/HOST/tcp/PORT, and nothing else."""
    match address.split("/"):
        case ["", "ip4" | "ip6" as kind, host, "tcp", port] if port.isascii() and port.isdecimal():
            return int(port) < 1 << 16 and _version(host) == (4 if kind == "ip4" else 6)
    return False


def dialable(addresses: Sequence[str], peer: str, machine: Iterable[str] | None = None) -> list[str]:
    """`addresses` with each unspecified one (0.0.0.0, ::) replaced by this machine's own, and the peer id at the end.
    `machine`: its IP addresses; None: ask the system. At most `MOST`."""
    own = list(machine) if machine is not None else machine_addresses()
    spread = [concrete for address in addresses for concrete in _concrete(address, own)]
    ended = [address if "/p2p/" in address else f"{address}/p2p/{peer}" for address in spread]
    return list(dict.fromkeys(ended))[:MOST]


def listenable(addresses: Sequence[str], has_ip6: bool | None = None) -> list[str]:
    """`addresses` without those of IPv6 where the machine has none. `has_ip6`: None: try."""
    if has_ip6 is None:
        has_ip6 = _has_ip6()
    return [address for address in addresses if has_ip6 or not address.startswith("/ip6/")]


def _has_ip6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def machine_addresses() -> list[str]:
    """IP addresses of the interfaces, those that reach no other machine (loopback, link-local) left out, unless there
    is no other."""
    found = [
        entry.address
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family in _KINDS.values() and "%" not in entry.address
    ]
    reaching = [address for address in found if not _is_local(address)]
    return reaching or ["127.0.0.1", "::1"]


def _concrete(address: str, own: Sequence[str]) -> list[str]:
    parts = address.split("/")
    if len(parts) < 3 or parts[1] not in _KINDS or not _is_unspecified(parts[2]):
        return [address]
    rest = "/".join(parts[3:])
    version = 4 if parts[1] == "ip4" else 6
    return [f"/{parts[1]}/{ip}/{rest}" for ip in own if ipaddress.ip_address(ip).version == version]


def _version(text: str) -> int | None:
    try:
        return ipaddress.ip_address(text).version
    except ValueError:
        return None


def _is_unspecified(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_unspecified
    except ValueError:
        return False


def _is_local(text: str) -> bool:
    address = ipaddress.ip_address(text)
    return address.is_loopback or address.is_link_local
