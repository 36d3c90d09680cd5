"""Compute the addresses at which other peers can dial this one, from its listening addresses and this machine's IP
addresses."""

import errno
import ipaddress
import socket
from collections.abc import Iterable, Sequence
from functools import lru_cache

import psutil

from echo2.p2p.multiaddr import MOST_ADDRESSES, address_of, with_peer


def dialable(addresses: Sequence[str], peer: str, machine: Iterable[str] | None = None) -> list[str]:
    """Return `addresses` with each unspecified one (0.0.0.0, ::) replaced by this machine's own, and the peer ID at the
    end; at most `MOST`. `machine`: its IP addresses; None: ask the operating system."""
    own = list(machine) if machine is not None else machine_addresses()
    spread = [concrete for address in addresses for concrete in _concrete(address, own)]
    return list(dict.fromkeys(with_peer(address, peer) for address in spread))[:MOST_ADDRESSES]


def listenable(addresses: Sequence[str]) -> list[str]:
    """Return `addresses` without IPv6 ones if the machine has no IPv6."""
    has_ip6 = _has_ip6()
    return [address for address in addresses if has_ip6 or address_of(address).kind != "ip6"]


def machine_addresses() -> list[str]:
    """Return the IP addresses of the interfaces. Loopback and link-local ones are left out, since no other machine can
    use them. Without any other address, return those of loopback."""
    addresses = [
        entry.address
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family in (socket.AF_INET, socket.AF_INET6) and "%" not in entry.address
    ]
    reaching = [address for address in addresses if not _is_local(address)]
    return reaching or ["127.0.0.1", "::1"]


def is_taken(address: str) -> bool:
    """Tell whether another socket listens on a TCP port of this machine, also one that lets others share it: the system
    would deal out connections among them, and peers would reach either process by chance. Port 0 is never taken."""
    parsed = address_of(address)
    if parsed.ip is None or not parsed.port:
        return False
    with socket.socket(socket.AF_INET if parsed.ip.version == 4 else socket.AF_INET6) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if parsed.ip.version == 6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            probe.bind((str(parsed.ip), parsed.port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def _has_ip6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def _concrete(address: str, own: Sequence[str]) -> list[str]:
    parsed = address_of(address)
    if parsed.ip is None or not parsed.ip.is_unspecified:
        return [address]
    return [parsed.at(ip).text for ip in own if ipaddress.ip_address(ip).version == parsed.ip.version]


@lru_cache(256)
def _is_local(text: str) -> bool:
    address = ipaddress.ip_address(text)
    return address.is_loopback or address.is_link_local
