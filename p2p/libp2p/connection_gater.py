"""Every connection of one host, whether there may be one more, and with whom there may be none.

1. All peers together may have `PeerLimits.connections`; one that was dialled by this host counts, and is never refused.
   Those of others have their places by p2p/limits/connection_places.py. A refusal is counted, and said in the log.
2. A peer that breaks the muxer's rules again and again is banned (p2p/limits/bans.py): its connections are closed, new
   ones are refused, and it is not dialled, until the ban ends. Only what arrived under its own key is held against it:
   bytes that do not open may be anybody's on the way, and slowness, silence, resets and broken lines are nobody's
   fault. Of stock yamux, which foreign peers speak, only the flood past its windows counts (p2p/libp2p/yamux.py).
"""

import logging
from collections.abc import Callable

import trio
from libp2p.abc import IMuxedConn, INetConn, INetStream, INetwork, INotifee
from libp2p.io.abc import ReadWriteCloser
from multiaddr import Multiaddr

from p2p.libp2p.muxed_connection import MuxConn
from p2p.libp2p.yamux import BoundedYamux
from p2p.limits.bans import Bans
from p2p.limits.connection_places import ConnectionAdmission, ConnectionRefused
from p2p.limits.origin import Origins
from p2p.limits.subnets import PeerLimits, RefusalCounter
from p2p.multiaddr import address_of

log = logging.getLogger("p2p")


class Connections(INotifee):
    """Upstream tells it of each that begins or ends. It holds their sockets, as upstream forgets the socket of one that
    ends while the host stops."""

    def __init__(self, limits: PeerLimits | None = None, now: Callable[[], float] = trio.current_time) -> None:
        """`now`: seconds, monotonic."""
        self._limits, self._now = limits or PeerLimits(), now
        self.refusals = RefusalCounter(now)
        self.open: dict[INetConn, trio.Event] = {}
        """Each with what is set when it ends."""
        self.doubled: Callable[[INetConn], None] = lambda newest: None
        """Told of a connection with a peer with whom there is one."""
        self.places = ConnectionAdmission(self._limits)
        self.origins = Origins(self._limits.subnet_of)
        self._bans = Bans()
        self._ended = trio.Event()

    async def gone(self, peer: str) -> None:
        """Wait until there is no connection with a peer."""
        while self.of(peer):
            await self._ended.wait()

    async def ended(self, muxed: IMuxedConn) -> None:
        """Wait until a connection has ended; at once where it is not open."""
        for connection, ended in self.open.items():
            if connection.muxed_conn is muxed:
                await ended.wait()
                return

    async def came(self, stream: ReadWriteCloser) -> bool:
        """Whether a connection that a listener accepted has a place; if not it is counted as refused."""
        remote = stream.get_remote_address()
        try:
            given_up = self.places.come(stream, "" if remote is None else remote[0], len(self.open), self._now())
        except ConnectionRefused as refused:
            self.refusals.count(refused.limit, refused.why)
            return False
        if given_up is not None:
            self.refusals.count("silent", "its handshake took longest when others came")
            assert isinstance(given_up, ReadWriteCloser)
            await given_up.close()
        return True

    def of(self, peer: str) -> list[INetConn]:
        """The connections with a peer."""
        return [connection for connection in self.open if str(connection.muxed_conn.peer_id) == peer]

    def banned_for(self, peer: str) -> float:
        """Seconds for which a peer is still left alone; 0 where it is not banned."""
        return self._bans.left(peer, self._now())

    async def connected(self, network: INetwork, conn: INetConn) -> None:
        refused = self._refused(conn)
        self.open[conn] = trio.Event()
        self.origins.came(str(conn.muxed_conn.peer_id), conn, *_remote(conn))
        if refused:
            await close_socket(conn)
        elif len(self.of(str(conn.muxed_conn.peer_id))) > 1:
            self.doubled(conn)

    def _refused(self, conn: INetConn) -> bool:
        peer = str(conn.muxed_conn.peer_id)
        if self.banned_for(peer) > 0:
            self.refusals.count("banned", f"{peer} is banned")
            return True
        if conn.muxed_conn.is_initiator:
            return False
        most = self._limits.connections
        if len(self.open) < most:
            return False
        self.refusals.count("connections", f"{most} are open, the most that this peer takes (setting connections)")
        return True

    async def disconnected(self, network: INetwork, conn: INetConn) -> None:
        self._charge(conn)
        if (ended := self.open.pop(conn, None)) is not None:
            ended.set()
        self.origins.went(str(conn.muxed_conn.peer_id), conn)
        self._ended.set()
        self._ended = trio.Event()
        await close_socket(conn)
        peer = str(conn.muxed_conn.peer_id)
        for other in self.of(peer) if self.banned_for(peer) else []:
            await close_socket(other)

    def _charge(self, conn: INetConn) -> None:
        """Rule 2, once a connection."""
        muxed = conn.muxed_conn
        if not isinstance(muxed, MuxConn | BoundedYamux) or muxed.fault is None:
            return
        peer, fault, muxed.fault = str(muxed.peer_id), muxed.fault, None
        term = self._bans.charge(peer, self._now())
        if term is not None:
            log.warning("%s is banned for %.0f s, as it does not stop breaking the protocol: %s", peer, term, fault)

    async def opened_stream(self, network: INetwork, stream: INetStream) -> None:
        pass

    async def closed_stream(self, network: INetwork, stream: INetStream) -> None:
        pass

    async def listen(self, network: INetwork, multiaddr: Multiaddr) -> None:
        pass

    async def listen_close(self, network: INetwork, multiaddr: Multiaddr) -> None:
        pass


def _remote(conn: INetConn) -> tuple[str | None, str]:
    """Return the other end's IP address, and the peer id of the relay where it has none."""
    remote = conn.muxed_conn.get_remote_address()  # type: ignore[attr-defined]
    if remote is not None:
        return remote[0], ""
    addresses = conn.muxed_conn.get_transport_addresses()
    return None, (address_of(str(addresses[0])).relay or "") if addresses else ""


async def close_socket(connection: INetConn) -> None:
    """At once, without a farewell. Never raises."""
    with trio.CancelScope(shield=True):
        try:
            await connection.muxed_conn.secured_conn.close()  # type: ignore[attr-defined]
        except Exception as error:
            log.debug("close: %r", error)
