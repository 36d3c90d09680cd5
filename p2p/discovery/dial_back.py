"""Whether a peer can be dialled: another one tries, method "reachable" of p2p/peer/rpc.py.

1. Whoever is asked connects to the address that the asker's own connection comes from, and to no other: nobody can be
   made to knock at a stranger's door. An asker that came through a relay has no such address, and gets no verdict.
2. At most `PORTS` ports, none below 1024 but 443, `TIMEOUT` seconds, `AT_ONCE` attempts at a time in all, and one
   question in `PAUSE` seconds from one subnet, or one private address. An asker that comes sooner, or when all
   attempts are taken, is told that this peer is busy: a request that waited would hold a slot of all others.
3. A port that takes a connection counts as open. Who listens there is found out by whoever dials it, as always.
"""

import ipaddress

import anyio

from p2p.discovery.messages import ReachableRequest, ReachableResponse
from p2p.errors import Busy
from p2p.limits.subnets import subnet_of
from p2p.limits.token_bucket import TokenBuckets
from p2p.multiaddr import address_of
from p2p.transport import Transport
from p2p.wire_types import decode, encode

METHOD = "reachable"
LIMIT = 256
"""Bytes of a question."""
PORTS = 4
TIMEOUT = 3.0
AT_ONCE = 16
PAUSE = 2.0


class DialBack:
    """Answers the question on one peer."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._questions = TokenBuckets(1 / PAUSE, 1)
        self._attempts = 0
        """Under way."""

    async def answer(self, peer: str, data: bytes) -> bytes:
        """The handler of the method. Raises `Malformed`, `Busy`."""
        ports = decode(data, ReachableRequest).ports
        ip = ip_of(self._transport.remote(peer))
        if ip is None:
            return encode(ReachableResponse())
        tried = {port for port in ports if port >= 1024 or port == 443}
        self._check_rate(ip, len(tried))
        open_ports: list[int] = []
        self._attempts += len(tried)
        try:
            async with anyio.create_task_group() as tasks:
                for port in tried:
                    tasks.start_soon(_try, ip, port, open_ports)
        finally:
            self._attempts -= len(tried)
        return encode(ReachableResponse(observed=ip, ports=sorted(open_ports)))

    def _check_rate(self, ip: str, attempts: int) -> None:
        """Rule 2. Raises `Busy`."""
        now, place = anyio.current_time(), subnet_of(ip) or ip
        if self._questions.delay(place, now) > 0:
            raise Busy(f"one question in {PAUSE:g} s is answered")
        if self._attempts + attempts > AT_ONCE:
            raise Busy("too many ports are being tried")
        self._questions.consume(place, now)


async def _try(ip: str, port: int, open_ports: list[int]) -> None:
    with anyio.move_on_after(TIMEOUT):
        try:
            stream = await anyio.connect_tcp(ip, port)
        except OSError:
            return
        open_ports.append(port)
        await stream.aclose()


def ip_of(address: str | None) -> str | None:
    """The IP address in a direct multiaddress; None for a relayed one, or one without."""
    parsed = address_of(address or "")
    if parsed.route == "relay" or (ip := parsed.ip) is None:
        return None
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return str(mapped or ip).partition("%")[0]


def ports_of(addresses: list[str]) -> list[int]:
    """TCP ports of direct multiaddresses, the first `PORTS`."""
    direct = [ports for ports in map(address_of, addresses) if ports.route != "relay"]
    return list(dict.fromkeys(ports.port for ports in direct if ports.port is not None))[:PORTS]
