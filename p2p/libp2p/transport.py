"""The transport over py-libp2p, on trio. Only this package (p2p/libp2p) imports libp2p; one of its modules, patches.py,
replaces parts of upstream's own code. docs/libp2p-faults.md names faults of upstream, and the part here that
remedies each. The rules of this module and of p2p/libp2p/stream.py:

1. Noise is the only security protocol. Between our own peers streams use our own muxer, as stock Noise and
   yamux spend 4 times the CPU time of TLS on task switches; a foreign peer's yamux is bounded. Upstream's resource
   manager is off.
2. A wait without a single byte for `patience` seconds resets the stream. A write that cannot leave, or a peer that
   answers no PING, closes the connection.
3. Frames are a length (u32, big-endian) and the bytes; the length is checked against the reader's limit before anything
   is read. A stream's protocol is proposed with the first bytes (p2p/libp2p/proposal.py).
4. There is one connection per peer. The daemon decides which peers to connect to: upstream dials all that it once knew.
5. Of a peer's addresses the host dials only the first that it learnt, and none for a while after a failure. A peer
   that returns at another port would stay unreachable. So known addresses are forgotten before each dial.
6. A dial to a connected peer returns at once, even if that connection is dead since this machine changed networks. So
   a connection without a sign of life within `PING_ANSWER_SECONDS` seconds is replaced. When a peer opens a second
   connection, the first one is probed in the same way.
7. Names are asked of DNS servers alone, and not of this machine's own list, nor of its network. Here the system
   resolves them before the dial.
"""

from collections.abc import Callable, Sequence
from typing import Any

import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2._libp2p.abc import IHost, INetConn, INetStream
from echo2._libp2p.custom_types import TMuxerOptions, TProtocol
from echo2._libp2p.multiaddr import Multiaddr
from echo2._libp2p.network.config import ConnectionConfig
from echo2._libp2p.peer.id import ID
from echo2._libp2p.peer.peerinfo import info_from_p2p_addr
from echo2._libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from echo2.p2p.errors import LocalNetworkFault, Unreachable
from echo2.p2p.guard import guard_handler, log
from echo2.p2p.libp2p.assembly import new_host
from echo2.p2p.libp2p.circuit import RelayClient, remote_address, without_names
from echo2.p2p.libp2p.connection_gater import Connections, close_socket
from echo2.p2p.libp2p.hole_punch import HolePuncher
from echo2.p2p.libp2p.identity_keys import create_new_key_pair
from echo2.p2p.libp2p.mux import PROTOCOL as MUX
from echo2.p2p.libp2p.muxed_connection import MuxConn
from echo2.p2p.libp2p.noise_session import security
from echo2.p2p.libp2p.patches import patch_host, patch_streams
from echo2.p2p.libp2p.relay_service import RelayService
from echo2.p2p.libp2p.stream import LibP2PStream
from echo2.p2p.libp2p.upstream_logs import forward_at_debug
from echo2.p2p.libp2p.yamux import BoundedYamux
from echo2.p2p.limits.relay_quota import RelayLimits
from echo2.p2p.limits.subnets import PeerLimits
from echo2.p2p.local_addresses import is_taken
from echo2.p2p.multiaddr import Route, address_of, route_of
from echo2.p2p.transport import TRANSPORT_SILENCE_SECONDS, Stream, StreamHandler
from echo2.runtime.figures import figure

DIAL_TIMEOUT = 15.0
"""Seconds for one dial of one address."""
PING_ANSWER_SECONDS = 4.0
CLOSE_TIMEOUT = 2.0
"""Seconds for closing all connections when the transport stops."""
OWN_DIALS = 16
"""Connections that this host may dial beyond `PeerLimits.connections`, when inbound ones occupy all places."""


MUXERS: TMuxerOptions = {TProtocol(MUX): MuxConn, TProtocol(YAMUX): BoundedYamux}
"""The stream muxers, the preferred one first; stock yamux is for peers of other projects."""


class _UnknownName(Exception):
    """The system knows no address of a host's name."""


class LibP2PTransport:
    """The `p2p.transport.Transport` over py-libp2p, on trio. Its further attributes are for reading, on trio."""

    def __init__(
        self,
        key: Ed25519PrivateKey,
        listen: Sequence[str],
        *,
        patience: float = TRANSPORT_SILENCE_SECONDS,
        relay: RelayLimits | None = None,
        limits: PeerLimits | None = None,
    ) -> None:
        """`listen`: multiaddresses such as /ip4/0.0.0.0/tcp/4001 or /ip6/::/tcp/0. `patience`: seconds without a byte
        before a stream is reset. `relay`: quotas of its relay service, None for no such service. Raises
        `LocalNetworkFault`."""
        limits = limits or PeerLimits()
        try:
            self._listen = [Multiaddr(address) for address in listen]
        except ValueError as error:
            raise LocalNetworkFault(f"not a multiaddress to listen on: {error}") from error
        self._patience = patience
        self._nursery: trio.Nursery | None = None
        patch_streams()
        forward_at_debug()
        self._most = limits.connections + OWN_DIALS
        upstream_bounds = ConnectionConfig(  # wider than ours: upstream refuses silently
            max_connections=2 * self._most, high_watermark=2 * self._most, low_watermark=0, min_connections=0,
            max_connections_per_peer=1, dial_timeout=DIAL_TIMEOUT,
        )  # fmt: skip
        key_pair = create_new_key_pair(key.private_bytes_raw())
        self.host: IHost = new_host(key_pair, security(key_pair), MUXERS, upstream_bounds)
        self.peer_id = str(self.host.get_id())
        self.connections = Connections(self.host.get_network(), limits, self._probe_older)
        patch_host(self.host, MUXERS, self.connections.serve, self.connections.on_load)
        self._relay_client = RelayClient(self.host, self.connections.disconnected_from, self._upgrade)
        self._hole_puncher = HolePuncher(self.host, self._relay_client, self.connections.origins.of)
        self.relay_service = RelayService(self.host, relay, limits.parties) if relay is not None else None
        self.host.get_network().register_notifee(self.connections)
        self.release = self._relay_client.release
        self.origin = self.connections.origins.of
        self.refusals = self.connections.refusals.counts

    async def run(self, listening: Callable[[], None]) -> None:
        async with (
            self.host.run(listen_addrs=[one for one in self._listen if not is_taken(str(one))]),
            trio.open_nursery() as self._nursery,
        ):
            self._check_listeners()
            await self.host.get_network().auto_connector.stop()  # type: ignore[attr-defined]
            listening()
            try:
                await trio.sleep_forever()
            finally:
                await self._close_all()

    def addresses(self) -> list[str]:
        return [*(str(address) for address in self.host.get_addrs()), *self._relay_client.addresses()]

    def remote(self, peer: str) -> str | None:
        addresses = [remote_address(one.muxed_conn) for one in self.connections.of(peer) if not one.is_closed]
        return min(filter(None, addresses), key=lambda address: route_of(address) == "relay", default=None)

    def peers(self) -> list[str]:
        return [str(peer) for peer in self.host.get_connected_peers()]

    def routes(self) -> dict[str, Route]:
        routes: dict[str, Route] = {}
        for connection in self.connections.open:
            peer = str(connection.muxed_conn.peer_id)
            if not connection.is_closed and routes.get(peer) != "direct":
                routes[peer] = route_of(remote_address(connection.muxed_conn) or "")
        return routes

    async def dial(self, addresses: Sequence[str]) -> str:
        why = ""
        for address in addresses:
            place = address_of(address)
            peer = place.peer
            if peer == self.peer_id:
                continue
            if (left := self.connections.banned_for(peer)) > 0:
                why = f"; {peer} is banned for {figure(left)} s more, for repeated protocol violations"
                continue
            if len(self.connections.open) >= self._most and not self.connections.of(peer):
                why = f"; this peer has {len(self.connections.open)} connections, its setting allows no more"
                continue
            try:
                with trio.fail_after(DIAL_TIMEOUT):
                    for passed in place.peers:  # a relay before the peer behind it
                        await self._drop_dead(passed)
                    relayed = place.route == "relay"
                    return await (self._relay_client.dial(address) if relayed else self._connect(address))
            except _UnknownName as error:
                why = f"; {error}"
            except Exception as error:
                log.debug("dial %s: %r", address, error)
        raise Unreachable(f"no peer answers at {', '.join(addresses) or 'any address: none was given'}{why}")

    def _probe_older(self, newest: INetConn) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(guard_handler(self._drop_dead), str(newest.muxed_conn.peer_id), newest)

    async def _drop_dead(self, peer: str, except_for: INetConn | None = None) -> None:
        """Close connections without a sign of life (rule 6). Stock yamux is not probed."""
        for connection in self.connections.of(peer):
            muxed = connection.muxed_conn
            if connection is except_for or not isinstance(muxed, MuxConn) or muxed.is_closed:
                continue
            if not await muxed.alive(PING_ANSWER_SECONDS):
                log.info("connection replaced: %s sent nothing for %g s", peer, PING_ANSWER_SECONDS)
                await close_socket(connection)
                await connection.close()

    async def _connect(self, address: str) -> str:
        """Connect with the peer at an address, tried at each IP address of its name (rule 7). Each has its share of
        the time that is left, as one that answers nothing would take all of it from the others."""
        fault: Exception = _UnknownName(f"this machine knows no address of {address_of(address).host}")
        places = await without_names([address])
        for number, place in enumerate(places):
            seconds = (trio.current_effective_deadline() - trio.current_time()) / (len(places) - number)
            try:
                with trio.fail_after(max(0.0, seconds)):
                    info = info_from_p2p_addr(Multiaddr(place))
                    self._forget(info.peer_id)
                    await self.host.connect(info)
                    return str(info.peer_id)
            except Exception as error:
                fault = error
        raise fault

    async def reserve(self, addresses: Sequence[str]) -> None:
        if self._nursery is None:
            raise Unreachable("the network is not running")
        await self._relay_client.reserve(addresses, self._nursery)

    def count_relayed_bytes(self) -> int:
        return self.relay_service.bytes_relayed if self.relay_service is not None else 0

    def _upgrade(self, peer: str) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(self._hole_puncher.upgrade, peer)

    def _forget(self, peer: ID) -> None:
        """Forget a peer's addresses and failed dials (rule 5)."""
        network: Any = self.host.get_network()
        network.peerstore.clear_addrs(peer)
        network._negative_peer_cache.evict(str(peer))

    async def open(self, peer: str, protocol: str) -> Stream:
        target = ID.from_string(peer)
        if target not in self.host.get_connected_peers():
            raise Unreachable(f"{peer} is not connected")
        try:
            with trio.fail_after(self._patience):
                stream = await self.host.get_network().new_stream(target)
                stream.set_protocol(TProtocol(protocol))
            return self._wrap(stream, proposed=protocol)
        except Exception as error:
            raise Unreachable(f"no {protocol} stream to {peer}: {error!r}") from None

    def handle(self, protocol: str, handler: StreamHandler) -> None:
        async def serve(stream: INetStream) -> None:
            wrapped = self._wrap(stream)
            await guard_handler(handler)(wrapped)
            await wrapped.linger()

        self.host.set_stream_handler(TProtocol(protocol), serve)

    async def drop(self, peer: str) -> None:
        for connection in self.connections.of(peer):
            await close_socket(connection)  # first: a GOAWAY to a frozen peer would never leave
            # Not `host.disconnect`: it would also forget a new connection of a peer that reconnected meanwhile.
            await connection.close()

    async def _close_all(self) -> None:
        """Close every connection, so that peers need not wait for their watchdogs: upstream closes none."""
        with trio.move_on_after(CLOSE_TIMEOUT) as scope:
            scope.shield = True
            async with trio.open_nursery() as nursery:
                for peer in self.host.get_connected_peers():
                    nursery.start_soon(self.host.disconnect, peer)
        for connection in list(self.connections.open):
            await close_socket(connection)

    def _wrap(self, stream: INetStream, *, proposed: str | None = None) -> LibP2PStream:
        if self._nursery is None:
            raise Unreachable("the network is not running")
        peer = str(stream.muxed_conn.peer_id)
        return LibP2PStream(stream, peer, self._nursery, self._patience, self.drop, proposed=proposed)

    def _check_listeners(self) -> None:
        running = self.host.get_network().listeners
        for address in self._listen:
            if str(address) not in running:
                raise LocalNetworkFault(
                    f"cannot listen on {address}: the port is taken or not allowed; choose another port"
                )
