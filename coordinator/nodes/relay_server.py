"""`echo2-coord relay`: a relay by itself, for a host with a public address whose run is elsewhere.

1. It has a key of its own, and knows no run: it forwards encrypted bytes within the quotas of
   p2p/limits/relay_quota.py, as every relay does. All its circuits may lead to one target, the coordinator of a run: a
   few of them that anybody holds keep no node out.
2. Its address is printed once it listens, as `network.relays` of a run and `relays` of a node take it.
"""

import asyncio
import ipaddress
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

from echo2.p2p.identity import load_or_create_key
from echo2.p2p.limits.relay_quota import RelayLimits
from echo2.p2p.local_addresses import listenable
from echo2.p2p.multiaddr import address_of, with_peer
from echo2.runtime import descriptors
from echo2.runtime.errors import LocalFault
from echo2.runtime.units import MBIT

MOST_CIRCUITS: Final = 1024
"""As many as connections that a peer has, by default."""


async def serve_relay(home: Path, port: int, host: str | None, rate: float, report: Callable[[str], None]) -> None:
    """Relay until cancelled, or until SIGTERM. `home`: folder of its key. `port`: TCP port; 0: any free one. `host`: a
    public IP address or name of this machine; None: addresses of its interfaces. `rate`: Mbit/s. Raises
    `LocalFault`."""
    from echo2.p2p.libp2p.threaded_network import ThreadedPeer

    public = None if host is None else public_address(host)
    key = load_or_create_key(home / "relay.key")
    descriptors.raise_limit()
    listen = listenable([f"/ip4/0.0.0.0/tcp/{port}", f"/ip6/::/tcp/{port}"])
    peer = ThreadedPeer(key, listen, relay=limits_of(rate))
    running = asyncio.create_task(peer.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    try:
        await peer.ready()
        addresses = await peer.addresses()
        if public is not None:
            addresses = [with_peer(f"{public}/tcp/{address_of(addresses[0]).port}", peer.peer_id)]
        for address in addresses:
            report(address)
        await running
    except asyncio.CancelledError:
        if not running.cancelled():
            raise
    finally:
        running.cancel()
        await asyncio.wait([running])


def limits_of(rate: float) -> RelayLimits:
    """Return the quotas of a relay by itself (rule 1). `rate`: Mbit/s."""
    return RelayLimits(rate=rate * MBIT, reservations=MOST_CIRCUITS, circuits=MOST_CIRCUITS, per_target=MOST_CIRCUITS)


def public_address(host: str) -> str:
    """Return the beginning of a multiaddress for an IP address or a name. Raises `LocalFault`."""
    try:
        return f"/ip{ipaddress.ip_address(host).version}/{host}"
    except ValueError:
        if re.fullmatch(r"(?=.{1,253}\Z)[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})+", host):
            return f"/dns/{host}"
    raise LocalFault(f"--host should be an IP address or a name, as relay.example.org, not {host[:80]!r}")
