"""The connections of one host: how inbound ones are accepted, the limit of all, bans of peers, what streams occupy.

1. All peers together may have `PeerLimits.connections` connections. One dialled by this host counts and is never
   refused. Inbound ones are admitted by p2p/limits/connection_places.py: each occupies a place from its acceptance to
   its end. Each refusal is counted and logged. A relayed connection passes no listener, and counts once it is open.
2. A peer that breaks the muxer's rules repeatedly is banned (p2p/limits/bans.py). Until the ban ends, its connections
   are closed, new ones are refused, and it is not dialled.
3. Only faults in authenticated data count towards a ban. Bytes that fail decryption may have been injected on the path;
   slowness, silence, resets and lost connections are nobody's fault. Of a peer that speaks stock yamux, only the
   overrun of a window counts (p2p/libp2p/yamux.py).
4. What the streams that peers open occupy, streams and bytes whose rest has not come, is divided among parties by
   p2p/limits/shares.py before any handler sees a stream. Streams that this host opens are in no pool with them.
5. Inbound connections are served in place of py-libp2p's own handler (p2p/libp2p/patches.py, patch 5), whose refusals
   are silent. The header of a trusted proxy is read before all else. A refused connection is closed before its
   handshake, but for one whose key has no accepted work and occupies a reserved place.
6. If a connection is evicted for another one, its socket is closed, and its handshake fails. No handshake is
   cancelled: upstream would not release the resources that it had acquired.
7. The handshake starts with the dialler's first byte, which must arrive within `FIRST_BYTE` seconds. A silent
   connection costs a sixth of the CPU time of a handshake begun in vain.
"""

import socket
from collections.abc import Callable
from typing import Any

import trio

from echo2._libp2p.abc import INetConn, INetwork, INotifee
from echo2._libp2p.io.abc import ReadWriteCloser
from echo2._libp2p.multiaddr import Multiaddr
from echo2._libp2p.network.connection.raw_connection import RawConnection
from echo2.p2p.errors import Malformed
from echo2.p2p.guard import log
from echo2.p2p.libp2p.muxed_connection import MuxConn
from echo2.p2p.libp2p.noise_socket import readable, receiver
from echo2.p2p.libp2p.patches import set_source
from echo2.p2p.libp2p.yamux import BoundedYamux
from echo2.p2p.limits import shares
from echo2.p2p.limits.bans import Bans
from echo2.p2p.limits.connection_places import HANDSHAKES_MIN, ConnectionAdmission, ConnectionRefused
from echo2.p2p.limits.origin import Origins
from echo2.p2p.limits.proxy_header import PEEKED_BYTES, begins_header, read_source, unnamed_proxy
from echo2.p2p.limits.shares import Shares
from echo2.p2p.limits.subnets import PeerLimits, RefusalCounter
from echo2.p2p.multiaddr import address_of

FIRST_BYTE = 10.0
Loaded = MuxConn | BoundedYamux
"""A connection that tells what the streams of its peer occupy."""


class Connections(INotifee):
    """The open connections of one host; upstream notifies this object of each that begins or ends. It keeps their
    sockets, because upstream forgets the socket of a connection that ends while the host stops."""

    def __init__(self, network: Any, limits: PeerLimits, on_duplicate: Callable[[INetConn], None]) -> None:
        """`network`: upstream's. `on_duplicate`: called with each further connection with a peer that is already
        connected."""
        self._network, self._limits, self._on_duplicate = network, limits, on_duplicate
        self._now = trio.current_time
        self.refusals = RefusalCounter(self._now)
        self.open: dict[INetConn, trio.Event] = {}
        """Open connection -> an event that is set when it ends."""
        self.places = ConnectionAdmission(self._limits)
        self.origins = Origins(self._limits.parties)
        streams, unfinished = shares.STREAMS_PER_PLACE * self._limits.connections, shares.STRANGERS_UNFINISHED
        self.streams = Shares[Loaded](streams, streams - streams // 4, shares.STREAMS_PER_PARTY)
        self.unfinished = Shares[Loaded](shares.KNOWN_FACTOR * unfinished, unfinished)
        self._bans = Bans()
        self._headers = 0
        """Connections of trusted proxies whose header has not come."""

    async def disconnected_from(self, peer: str) -> None:
        """Wait until there is no connection with a peer."""
        while connections := self.of(peer):
            await self.open[connections[0]].wait()

    async def serve(self, stream: ReadWriteCloser, address: Multiaddr) -> None:
        """Upgrade a connection that a listener accepted (rules 5 to 7), and return when it has ended: the listener then
        closes its socket."""
        try:
            await self._take_source(stream)
            await self._admit(stream)
            with trio.fail_after(FIRST_BYTE):
                await readable(stream)
            receive = receiver(stream)
            if receive is not None and begins_header(await receive(PEEKED_BYTES, socket.MSG_PEEK)):
                raise ConnectionRefused("proxy", unnamed_proxy(ip_of(stream)))
            muxed = await self._network.upgrade_inbound_raw_conn(RawConnection(stream, False), address)
            self.places.handshake_done(stream, str(muxed.peer_id), len(self.open))
            for ended in [ended for connection, ended in self.open.items() if connection.muxed_conn is muxed]:
                await ended.wait()
        except ConnectionRefused as refused:
            self.refusals.count(refused.limit, refused.why)
            await stream.close()
        except Exception as error:
            log.debug("inbound on %s: %r", address, error)
        finally:
            self.places.on_connection_end(stream)

    async def _admit(self, stream: ReadWriteCloser) -> None:
        """Admit a connection. Raises `ConnectionRefused` if the limits leave no place."""
        given_up = self.places.admit(stream, ip_of(stream), len(self.open), self._now())
        if given_up is not None:
            self.refusals.count("silent", "its handshake had taken longest when another connection needed the place")
            assert isinstance(given_up, ReadWriteCloser)
            await given_up.close()

    async def _take_source(self, stream: ReadWriteCloser) -> None:
        """Let a connection from a trusted proxy count as its client's (p2p/limits/proxy_header.py). Raises
        `ConnectionRefused` without a header, or while too many proxied connections send none."""
        receive = receiver(stream)
        if receive is None or ip_of(stream) not in self._limits.parties.proxies:
            return
        if self._headers >= max(HANDSHAKES_MIN, self._limits.connections // 4):
            raise ConnectionRefused("proxy", "too many connections of proxies have sent no header yet")
        self._headers += 1
        try:
            if (source := await read_source(receive)) is not None:
                set_source(stream, source)
        except Malformed as error:
            raise ConnectionRefused("proxy", f"{ip_of(stream)}, a trusted proxy: {error}") from None
        finally:
            self._headers -= 1

    def on_load(self, muxed: Loaded, streams: int, nbytes: int) -> None:
        """Note what a peer's streams on a connection occupy (rule 4); others give way to it, or it to others."""
        origin = self.origins.of(str(muxed.peer_id))
        open_now = not muxed.is_closed
        for share, amount in ((self.streams, streams), (self.unfinished, nbytes)):
            for crowded in share.occupy(muxed, origin, amount * open_now):
                self.refusals.count("streams", f"{crowded.peer_id} has too many streams or unfinished requests open")
                crowded.give_way()

    def of(self, peer: str) -> list[INetConn]:
        return [connection for connection in self.open if str(connection.muxed_conn.peer_id) == peer]

    def banned_for(self, peer: str) -> float:
        """Return the seconds until the ban of a peer ends; 0 without a ban."""
        return self._bans.remaining(peer, self._now())

    async def connected(self, network: INetwork, conn: INetConn) -> None:
        refused = self._is_refused(conn)
        self.open[conn] = trio.Event()
        self.origins.on_connection(str(conn.muxed_conn.peer_id), conn, *_remote(conn))
        if refused:
            await close_socket(conn)
        elif len(self.of(str(conn.muxed_conn.peer_id))) > 1:
            self._on_duplicate(conn)

    def _is_refused(self, conn: INetConn) -> bool:
        peer = str(conn.muxed_conn.peer_id)
        if self.banned_for(peer) > 0:
            self.refusals.count("banned", f"{peer} is banned")
            return True
        if conn.muxed_conn.is_initiator:
            return False
        most = self._limits.connections
        if len(self.open) < most:
            return False
        self.refusals.count("connections", f"{most} connections are open, the limit of this peer (setting connections)")
        return True

    async def disconnected(self, network: INetwork, conn: INetConn) -> None:
        self._charge(conn)
        for share in (self.streams, self.unfinished):
            share.leave(conn.muxed_conn)  # type: ignore[arg-type]
        if (ended := self.open.pop(conn, None)) is not None:
            ended.set()
        self.origins.on_disconnection(str(conn.muxed_conn.peer_id), conn)
        await close_socket(conn)
        peer = str(conn.muxed_conn.peer_id)
        for other in self.of(peer) if self.banned_for(peer) else []:
            await close_socket(other)

    def _charge(self, conn: INetConn) -> None:
        """Charge a broken rule to the peer, once per connection (rules 2 and 3)."""
        muxed = conn.muxed_conn
        if not isinstance(muxed, MuxConn | BoundedYamux) or muxed.fault is None:
            return
        peer, fault, muxed.fault = str(muxed.peer_id), muxed.fault, None
        term = self._bans.charge(peer, self._now())
        if term is not None:
            log.warning("peer banned: %s, for %.0f s, for repeated protocol violations: %s", peer, term, fault)

    async def listen(self, *args: Any, **kwargs: Any) -> None:
        pass

    listen_close = opened_stream = closed_stream = listen


def ip_of(stream: ReadWriteCloser) -> str:
    """Return the address from which a connection comes; "" where it is not known."""
    remote = stream.get_remote_address()
    return "" if remote is None else remote[0]


def _remote(conn: INetConn) -> tuple[str | None, str]:
    """Return the other end's IP address, None for a relayed connection, and the relay's peer id, "" without one."""
    remote = conn.muxed_conn.get_remote_address()  # type: ignore[attr-defined]
    if remote is not None:
        return remote[0], ""
    addresses = conn.muxed_conn.get_transport_addresses()
    return None, (address_of(str(addresses[0])).relay or "") if addresses else ""


async def close_socket(connection: INetConn) -> None:
    """Close the socket of a connection at once, without a GOAWAY. Never raises."""
    with trio.CancelScope(shield=True):
        try:
            await connection.muxed_conn.secured_conn.close()  # type: ignore[attr-defined]
        except Exception as error:
            log.debug("close: %r", error)
