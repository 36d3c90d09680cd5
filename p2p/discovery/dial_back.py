"""Dial-back (AutoNAT): a peer tests whether another one can be dialled. Method "reachable" of p2p/peer/rpc.py.

1. The peer dials only the address that the request's own connection comes from, so the method cannot be used to probe
   third parties. A request through a relay has no such address and gets no verdict.
2. At most `PORTS` ports are tried per request, none below 1024 but 443, each for `DIAL_BACK_SECONDS` seconds. At most
   `AT_ONCE` attempts run at a time, over all requests, a quarter of them for parties with accepted work. Per public
   subnet, or per private address, one request per `DIAL_BACK_PAUSE_SECONDS` seconds is handled.
3. A request beyond these limits is refused as busy, since a waiting one would occupy a request slot.
4. A port that accepts a connection counts as open. The handshake of a later dial authenticates the peer behind it.
"""

import ipaddress

import anyio

from echo2.p2p.discovery.messages import ReachableRequest, ReachableResponse
from echo2.p2p.errors import Busy
from echo2.p2p.limits.party import subnet_of
from echo2.p2p.limits.token_bucket import TokenBuckets
from echo2.p2p.multiaddr import address_of, is_open_port
from echo2.p2p.transport import Transport
from echo2.p2p.wire_types import decode, encode

METHOD = "reachable"
MOST_DIAL_BACK_BYTES = 256
PORTS = 4
DIAL_BACK_SECONDS = 3.0
AT_ONCE = 16
DIAL_BACK_PAUSE_SECONDS = 2.0


class DialBack:
    """Serves dial-back requests on one peer."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._requests = TokenBuckets(1 / DIAL_BACK_PAUSE_SECONDS, 1)
        self._attempts = 0

    async def answer(self, peer: str, data: bytes) -> bytes:
        """Handle a request: try the ports, and return those that accept. Raises `Malformed`, `Busy`."""
        ports = decode(data, ReachableRequest).ports
        ip = ip_of(self._transport.remote(peer))
        if ip is None:
            return encode(ReachableResponse())
        tried = {port for port in ports if is_open_port(port)}
        known = self._transport.origin(peer).is_known
        if self._attempts + len(tried) > (AT_ONCE if known else AT_ONCE - AT_ONCE // 4):
            raise Busy("too many ports are being tried")
        if self._requests.admit(subnet_of(ip) or ip, anyio.current_time()) > 0:
            raise Busy(f"one request per {DIAL_BACK_PAUSE_SECONDS:g} s is answered")
        open_ports: list[int] = []
        self._attempts += len(tried)
        try:
            async with anyio.create_task_group() as tasks:
                for port in tried:
                    tasks.start_soon(_try, ip, port, open_ports)
        finally:
            self._attempts -= len(tried)
        return encode(ReachableResponse(observed=ip, ports=sorted(open_ports)))


async def _try(ip: str, port: int, open_ports: list[int]) -> None:
    with anyio.move_on_after(DIAL_BACK_SECONDS):
        try:
            stream = await anyio.connect_tcp(ip, port)
        except OSError:
            return
        open_ports.append(port)
        await stream.aclose()


def ip_of(address: str | None) -> str | None:
    """Return the IP address in a direct multiaddress; None for a relayed one, or one without."""
    parsed = address_of(address or "")
    if parsed.route == "relay" or (ip := parsed.ip) is None:
        return None
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return str(mapped or ip).partition("%")[0]


def ports_of(addresses: list[str]) -> list[int]:
    """Return the first `PORTS` TCP ports of the multiaddresses that lead through no relay."""
    direct = [parsed for parsed in map(address_of, addresses) if parsed.route != "relay"]
    return list(dict.fromkeys(parsed.port for parsed in direct if parsed.port is not None))[:PORTS]
