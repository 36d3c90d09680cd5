"""Patches of py-libp2p 0.8.1 in the running process: for each, the code that it replaces, and the reason.

A subclass that upstream's own interface accepts (`BatchedNoise`, `MuxConn`) is no patch. A patch names
upstream's issue where there is one; otherwise it describes upstream's code. The tests of this module run upstream's
own code beside each patch, and fail once the patch is no longer needed.

1. `TrioTCPStream.get_remote_address` returns None for a socket address of four parts, as IPv6 has. Then limits per
   address, and the observed address told to a peer, miss every IPv6 peer. Behind a trusted proxy it returns the
   client's (`set_source`). (IPv6 over TCP at all: issue 1111.)
2. `SwarmConn` runs stream handlers in a nursery of the whole host: any exception in one ends the host. All handlers are
   guarded (p2p/guard.py), including those registered later. (In the negotiation before a handler: issue 417.)
3. `Swarm._notify` starts a task per notifee when a stream opens and closes. No notifee of ours uses these, and they are
   a sixth of the CPU time of a busy coordinator's requests. Notifees receive events of connections only.
4. `MuxerMultistream.new_conn` creates upstream's own `Yamux` for the protocol of yamux, whatever class was configured.
   Here the configured class is created, and told to whom it reports its load before it runs.
5. `Swarm._handle_inbound_connection` releases a connection's place only when the host stops: after `max_connections`
   peers had connected and left, the host accepted no more. p2p/libp2p/connection_gater.py serves them instead.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from echo2._libp2p.abc import IHost, IMuxedConn, INetStream, ISecureConn
from echo2._libp2p.custom_types import TMuxerOptions, TProtocol
from echo2._libp2p.io.abc import ReadWriteCloser
from echo2._libp2p.io.trio import TrioTCPStream
from echo2._libp2p.multiaddr import Multiaddr
from echo2._libp2p.peer.id import ID
from echo2._libp2p.stream_muxer.muxer_multistream import MuxerMultistream
from echo2.p2p.guard import guard_handler

STREAM_EVENTS: Final = {"opened_stream", "closed_stream"}


def patch_streams() -> None:
    """Apply patch 1 to every connection of this process; further calls change nothing."""
    TrioTCPStream.get_remote_address = _remote_address  # type: ignore[method-assign, assignment]


def patch_host(
    host: IHost,
    muxers: TMuxerOptions,
    serve: Callable[[ReadWriteCloser, Multiaddr], Awaitable[None]],
    on_load: Callable[[Any, int, int], None],
) -> None:
    """Apply patches 2 to 5, before anything else is built on this host. `muxers`: the preferred one first. `serve`:
    serves a connection that a listener accepted, and returns when it has ended. `on_load`: see `MuxConn`."""
    network: Any = host.get_network()
    _guard(host)
    _quieten(network)
    network.upgrader.muxer_multistream = MuxerSelector(muxers, on_load)
    network._handle_inbound_connection = serve


class MuxerSelector(MuxerMultistream):
    """Upstream's muxer negotiation, with a connection of the configured class as its result (patch 4)."""

    def __init__(self, muxers: TMuxerOptions, on_load: Callable[[Any, int, int], None]) -> None:
        super().__init__(muxers)
        self._on_load = on_load

    async def new_conn(self, conn: ISecureConn, peer_id: ID) -> IMuxedConn:
        protocol, kind = await self._selector.select(conn, conn.is_initiator, self.negotiate_timeout)
        muxed = self._annotate_connection(kind(conn, peer_id), conn, protocol)
        muxed.on_load = self._on_load  # type: ignore[attr-defined]
        return muxed


def _remote_address(stream: TrioTCPStream) -> tuple[str, int] | None:
    """Return the host without a zone, and the port; None where the socket was closed before the first call."""
    if stream._cached_remote_address is None:
        try:
            host, port = stream.stream.socket.getpeername()[:2]
        except (OSError, ValueError, AttributeError):
            return None
        stream._cached_remote_address = str(host).partition("%")[0], int(port)
    return stream._cached_remote_address


def set_source(stream: ReadWriteCloser, source: tuple[str, int]) -> None:
    """Let a stream count as one from `source`, a trusted proxy's client (patch 1)."""
    assert isinstance(stream, TrioTCPStream)
    stream._cached_remote_address = source


def _guard(host: IHost) -> None:
    """Guard every handler of a host: those registered now and later."""
    register = host.set_stream_handler

    def set_stream_handler(protocol: TProtocol, handler: Callable[[INetStream], object]) -> None:
        register(protocol, guard_handler(handler))  # type: ignore[arg-type]

    host.set_stream_handler = set_stream_handler  # type: ignore[assignment, method-assign]
    for protocol, handler in list(host.get_mux().handlers.items()):
        if protocol is not None and handler is not None:
            register(protocol, guard_handler(handler))
    network: Any = host.get_network()
    network.set_stream_handler(guard_handler(network.common_stream_handler))


def _quieten(network: Any) -> None:
    notify = network._notify

    async def quiet(method: str, *about: Any) -> None:
        if method not in STREAM_EVENTS:
            await notify(method, *about)

    network._notify = quiet
