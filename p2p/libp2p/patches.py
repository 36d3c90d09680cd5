"""Every patch of py-libp2p: what it replaces in a running process, why, and until when. Read at version 0.8.1.

A subclass that upstream's own interface takes (`Router`, `BatchedNoise`, `MuxConn`) is no patch. What a patch repairs
has a number where upstream has an issue of it; where none was found, the line says what upstream's code does. The tests
of this module run upstream's own code beside each patch and fail once it no longer needs one.

1. `TrioTCPStream.get_remote_address` takes a socket's address of four parts, as over IPv6, for none. Then limits by
   address, and the address that a peer is told it has, miss every IPv6 peer. (IPv6 over TCP at all: issue 1111.)
2. `SwarmConn` runs stream handlers in a nursery of the whole host: any exception in one ends the host. Handlers are
   guarded (p2p/guard.py), those that are registered later too. (In the negotiation before a handler: issue 417.)
3. `Swarm._notify` starts a task per notifee at each stream's beginning and end, in which none of ours does anything: a
   sixth of what a busy coordinator's requests cost. Notifees are told of connections alone.
4. `MuxerMultistream.new_conn` makes upstream's own `Yamux` for the protocol of yamux, whatever class it was given.
5. `Swarm._handle_inbound_connection` waits until the host stops before it gives a connection's place back: after
   `max_connections` peers had come and gone, the host was deaf. Connections are taken in by p2p/libp2p/inbound.py.
6. `Pubsub._handle_dead_peer` forgets the subscriptions of a peer whose stream broke. A peer whose own stream is whole
   does not say them again: while it is connected, they are remembered. (Upstream's change 1407 forgets them earlier.)
7. `PeerStore.consume_peer_record` refuses a record that is older than the known one, and gossip drops the message that
   brought it: a peer whose clock was set back is not heard. The record alone is refused: we have our own
   (p2p/discovery/peer_records.py).
8. `Pubsub` numbers messages from the second in which it began. A peer that said more than one per second and comes back
   uses numbers again, and its messages are taken for the old ones. They begin at the nanosecond, as go-libp2p's do.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from libp2p.abc import IHost, IMuxedConn, INetStream, ISecureConn
from libp2p.custom_types import TMuxerOptions, TProtocol
from libp2p.io.abc import ReadWriteCloser
from libp2p.io.trio import TrioTCPStream
from libp2p.peer.envelope import Envelope
from libp2p.peer.id import ID
from libp2p.pubsub.pubsub import Pubsub
from libp2p.stream_muxer.muxer_multistream import MuxerMultistream
from multiaddr import Multiaddr

from p2p.guard import guarded

STREAM_NEWS: Final = {"opened_stream", "closed_stream"}


def patch_streams() -> None:
    """Apply patch 1, to every connection of this process; further calls change nothing."""
    TrioTCPStream.get_remote_address = _remote_address  # type: ignore[method-assign, assignment]


def patch_host(
    host: IHost, muxers: TMuxerOptions, take_in: Callable[[ReadWriteCloser, Multiaddr], Awaitable[None]]
) -> None:
    """Apply patches 2 to 5, before anything else is built on this host. `muxers`: the preferred one first. `take_in`:
    takes a connection that a listener accepted, and returns when it has ended."""
    network: Any = host.get_network()
    _guard(host)
    _quieten(network)
    network.upgrader.muxer_multistream = MuxerSelector(muxers)
    network._handle_inbound_connection = take_in


def patch_pubsub(pubsub: Pubsub) -> Pubsub:
    """Apply patches 6 to 8 to gossip that does not run yet; return it."""
    store: Any = pubsub.host.get_peerstore()
    forget, take = pubsub._forget_all_subscriptions, store.consume_peer_record

    def forget_those_that_left(peer_id: ID) -> None:
        if not pubsub._peer_is_connected(peer_id):
            forget(peer_id)

    def take_newer(envelope: Envelope, ttl: int) -> bool:
        record = envelope.record()
        known = store.peer_record_map.get(record.peer_id)
        return (known is not None and known.seq > record.seq) or bool(take(envelope, ttl))

    pubsub._forget_all_subscriptions = forget_those_that_left  # type: ignore[method-assign]
    store.consume_peer_record = take_newer
    pubsub.counter = time.time_ns()
    return pubsub


class MuxerSelector(MuxerMultistream):
    """Upstream's negotiation, which makes a connection of the class that it was given (patch 4)."""

    async def new_conn(self, conn: ISecureConn, peer_id: ID) -> IMuxedConn:
        protocol, kind = await self._selector.select(conn, conn.is_initiator, self.negotiate_timeout)
        return self._annotate_connection(kind(conn, peer_id), conn, protocol)


def _remote_address(stream: TrioTCPStream) -> tuple[str, int] | None:
    """Return the host without a zone, and the port; None once the socket is closed and was never asked."""
    if stream._cached_remote_address is None:
        try:
            host, port = stream.stream.socket.getpeername()[:2]
        except (OSError, ValueError, AttributeError):
            return None
        stream._cached_remote_address = str(host).partition("%")[0], int(port)
    return stream._cached_remote_address


def _guard(host: IHost) -> None:
    """Guard every handler of a host: those there are, and those that will be registered."""
    register = host.set_stream_handler

    def set_stream_handler(protocol: TProtocol, handler: Callable[[INetStream], object]) -> None:
        register(protocol, guarded(handler))  # type: ignore[arg-type]

    host.set_stream_handler = set_stream_handler  # type: ignore[assignment, method-assign]
    for protocol, handler in list(host.get_mux().handlers.items()):
        if protocol is not None and handler is not None:
            register(protocol, guarded(handler))
    network: Any = host.get_network()
    network.set_stream_handler(guarded(network.common_stream_handler))


def _quieten(network: Any) -> None:
    tell = network._notify

    async def quiet(method: str, *about: Any) -> None:
        if method not in STREAM_NEWS:
            await tell(method, *about)

    network._notify = quiet
