"""Inbound connections, in place of py-libp2p's own handler.

Upstream's takes one of `max_connections` places for each connection that it accepts, and gives none back before the
host stops: after 256 nodes had come and gone, a host was deaf for good. Its refusals are silent. Here:

1. A connection holds a place (p2p/limits/connection_places.py) from its acceptance to its end, and no longer.
2. One that is refused is closed before its handshake, counted, and said in the log. Of one that is given up for another
   the socket is closed, at which its handshake fails. No handshake is cancelled: upstream would not give back what it
   took for it.
3. The handshake begins with the first byte, which is the dialler's, and which comes within `FIRST_BYTE` seconds: one
   that says nothing costs a sixth of the time that a handshake begun in vain does.
4. A relayed connection, which no listener accepts, is held to the same number once it is open
   (p2p/libp2p/connection_gater.py).
"""

import logging
from typing import Any

import trio
from libp2p.abc import IHost
from libp2p.io.abc import ReadWriteCloser
from libp2p.network.connection.raw_connection import RawConnection
from multiaddr import Multiaddr

from p2p.libp2p.connection_gater import Connections
from p2p.libp2p.noise_socket import readable

FIRST_BYTE = 10.0

log = logging.getLogger("p2p")


class InboundUpgrader:
    """Takes in what the listeners of a host accept (p2p/libp2p/patches.py, 5)."""

    def __init__(self, host: IHost, connections: Connections) -> None:
        self._network: Any = host.get_network()
        self._connections = connections

    async def take_in(self, stream: ReadWriteCloser, address: Multiaddr) -> None:
        """Take one connection in, and keep its socket until it ends: the listener closes it when this returns."""
        if not await self._connections.came(stream):
            await stream.close()
            return
        try:
            with trio.fail_after(FIRST_BYTE):
                await readable(stream)
            muxed = await self._network.upgrade_inbound_raw_conn(RawConnection(stream, False), address)
            self._connections.places.shook_hands(stream)
            await self._connections.ended(muxed)
        except Exception as error:
            log.debug("inbound on %s: %r", address, error)
        finally:
            self._connections.places.left(stream)
