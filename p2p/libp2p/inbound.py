"""Inbound connections, in place of py-libp2p's own handler (p2p/libp2p/patches.py, patch 5), whose refusals are silent.

1. A connection occupies a place (p2p/limits/connection_places.py) from its acceptance to its end, and no longer.
2. A refused connection is closed, counted and logged: before its handshake, but for one whose key has no accepted work
   and occupies a reserved place. The header of a trusted proxy is read before all else.
3. If a connection is evicted for another one, its socket is closed, and its handshake fails. No handshake is
   cancelled: upstream would not release the resources that it had acquired.
4. The handshake starts with the dialler's first byte, which must arrive within `FIRST_BYTE` seconds. A silent
   connection costs a sixth of the CPU time of a handshake begun in vain.
5. A relayed connection passes no listener; it counts towards the same limit once it is open
   (p2p/libp2p/connection_gater.py).
"""

import logging
from typing import Any

import trio

from echo2._libp2p.abc import IHost
from echo2._libp2p.io.abc import ReadWriteCloser
from echo2._libp2p.multiaddr import Multiaddr
from echo2._libp2p.network.connection.raw_connection import RawConnection
from echo2.p2p.libp2p.connection_gater import Connections
from echo2.p2p.libp2p.noise_socket import readable
from echo2.p2p.limits.connection_places import ConnectionRefused

FIRST_BYTE = 10.0
"""Seconds (rule 4)."""

log = logging.getLogger("p2p")


class InboundUpgrader:
    """Upgrades the connections that the listeners of a host accept (patch 5 of p2p/libp2p/patches.py)."""

    def __init__(self, host: IHost, connections: Connections) -> None:
        self._network: Any = host.get_network()
        self._connections = connections

    async def serve(self, stream: ReadWriteCloser, address: Multiaddr) -> None:
        """Upgrade one connection, and return when it has ended: the listener then closes its socket."""
        connections = self._connections
        try:
            await connections.take_source(stream)
            await connections.admit(stream)
            with trio.fail_after(FIRST_BYTE):
                await readable(stream)
            await connections.check_first_bytes(stream)
            muxed = await self._network.upgrade_inbound_raw_conn(RawConnection(stream, False), address)
            connections.places.handshake_done(stream, str(muxed.peer_id), len(connections.open))
            await connections.wait_for_end(muxed)
        except ConnectionRefused as refused:
            connections.refusals.count(refused.limit, refused.why)
            await stream.close()
        except Exception as error:
            log.debug("inbound on %s: %r", address, error)
        finally:
            connections.places.on_connection_end(stream)
