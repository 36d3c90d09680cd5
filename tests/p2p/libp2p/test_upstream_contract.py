"""The parts of py-libp2p beyond its public interface that this project uses. An upgrade that changes any of them fails
here first, by name."""

import inspect
import re

import pytest
import trio
import trio.testing
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2._libp2p.abc import IMuxedConn, IMuxedStream
from echo2._libp2p.identity.identify.identify import AGENT_VERSION
from echo2._libp2p.io.trio import TrioTCPStream
from echo2._libp2p.network.connection.swarm_connection import SwarmConn
from echo2._libp2p.network.stream.net_stream import NetStream
from echo2._libp2p.network.swarm import Swarm
from echo2._libp2p.noise.connection import NoiseConnection
from echo2._libp2p.peer.id import ID
from echo2._libp2p.security.noise.transport import Transport as Noise
from echo2._libp2p.security.secure_session import SecureSession
from echo2._libp2p.stream_muxer.muxer_multistream import MuxerMultistream
from echo2._libp2p.stream_muxer.yamux.yamux import Yamux
from echo2._libp2p.transport.upgrader import TransportUpgrader
from echo2.p2p.libp2p.connection_gater import Connections
from echo2.p2p.libp2p.identity_keys import create_new_key_pair
from echo2.p2p.libp2p.muxed_connection import MuxConn, MuxStream
from echo2.p2p.libp2p.patches import STREAM_EVENTS
from echo2.p2p.libp2p.transport import LibP2PTransport
from tests.support.paths import ROOT
from tests.support.upstream_hosts import new_host


def test_the_bundled_libp2p_tells_peers_its_version_as_upstream_does():
    pinned = re.findall(r"^libp2p==(\S+)", (ROOT / "requirements-libp2p.lock").read_text(), re.MULTILINE)
    assert [f"py-libp2p/{version}" for version in pinned] == [AGENT_VERSION]


def test_the_handshake_leaves_its_cipher_states():
    one, other = (NoiseConnection.from_name(b"Noise_NN_25519_ChaChaPoly_SHA256") for _ in range(2))
    one.set_as_initiator()
    other.set_as_responder()
    for side in (one, other):
        side.start_handshake()
    other.read_message(one.write_message())
    one.read_message(other.write_message())
    for state in (one.noise_protocol.cipher_state_encrypt, other.noise_protocol.cipher_state_decrypt):
        assert len(state.k) == 32
        assert state.n == 0
    assert one.noise_protocol.cipher_state_encrypt.k == other.noise_protocol.cipher_state_decrypt.k


def test_upstream_noise_secures_connections_by_these_methods():
    assert list(inspect.signature(Noise.secure_inbound).parameters) == ["self", "conn"]
    assert list(inspect.signature(Noise.secure_outbound).parameters) == ["self", "conn", "peer_id"]


def test_a_secure_session_reads_messages_of_its_transport_and_hands_out_what_it_read_ahead():
    class Transport:
        async def read_msg(self) -> bytes:
            return b"abcdef"

    async def main() -> None:
        pair = create_new_key_pair()
        peer = ID.from_pubkey(pair.public_key)
        session = SecureSession(
            local_peer=peer, local_private_key=pair.private_key, remote_peer=peer,
            remote_permanent_pubkey=pair.public_key, is_initiator=True, conn=Transport(),
        )  # fmt: skip
        assert await session.read(2) == b"ab"
        assert (session._drain(None), session._drain(None)) == (b"cdef", b"")

    trio.run(main)


def test_a_muxer_s_class_is_called_with_connection_and_peer_and_is_negotiated_by_these_parts():
    source = inspect.getsource(MuxerMultistream.new_conn)
    assert "transport_class(conn, peer_id)" in source
    assert "await self._selector.select(\n            conn, conn.is_initiator, self.negotiate_timeout\n" in source
    assert "return self._annotate_connection(muxed_conn, conn, protocol)" in source
    assert isinstance(TransportUpgrader({}, {}).muxer_multistream, MuxerMultistream)


def test_yamux_reads_every_body_by_one_method_and_one_error_of_it_ends_the_connection():
    source = inspect.getsource(Yamux.handle_incoming)
    assert source.count("await self._read_data_body(length)") == 3
    assert source.count("read_exactly(") == source.count("read_exactly({HEADER_SIZE})") + 1  # the header itself
    assert "except trio.TooSlowError:\n                        raise\n" in source
    assert isinstance(Yamux(None, None, is_initiator=True).stream_buffers, dict)


def test_our_muxer_implements_the_interface_that_stock_yamux_does():
    for ours, stock, interface in ((MuxConn, Yamux, IMuxedConn), (MuxStream, None, IMuxedStream)):
        assert not getattr(ours, "__abstractmethods__", None)
        assert interface.__abstractmethods__ <= set(dir(ours))
        assert stock is None or interface.__abstractmethods__ <= set(dir(stock))


def test_a_muxed_connection_has_the_attributes_that_the_swarm_uses():
    source = inspect.getsource(Swarm.add_conn)
    for name in ("event_started", "is_closed", "is_established", "get_transport_addresses", "get_connection_type"):
        assert f"muxed_conn.{name}" in source
    assert 'setattr(muxed_conn, "on_close"' in inspect.getsource(SwarmConn.__init__)


def test_a_net_stream_shows_its_muxed_stream():
    assert "self.muxed_stream = muxed_stream" in inspect.getsource(NetStream.__init__)
    assert inspect.iscoroutinefunction(NetStream.close_write)
    assert inspect.iscoroutinefunction(NetStream.reset)


@pytest.mark.parametrize("name", ["listeners", "upgrader", "peerstore", "_negative_peer_cache", "auto_connector"])
def test_the_network_has_the_parts_that_the_transport_touches(name):
    async def main() -> object:
        return getattr(new_host().get_network(), name)

    assert trio.run(main) is not None


def test_accepted_connections_go_through_our_handler_which_takes_no_token_for_life():
    """Upstream's own handler takes a token of `_inbound_limiter` per connection and returns none before the host
    stops."""
    assert "await self._handle_inbound_connection(read_write_closer, _maddr)" in inspect.getsource(Swarm.listen)
    upstream = inspect.getsource(Swarm._handle_inbound_connection)
    assert "self._inbound_limiter.acquire_nowait()" in upstream
    assert inspect.getsource(Swarm).count("_inbound_limiter.acquire") == 1, "and no other method does"
    assert list(inspect.signature(Swarm.upgrade_inbound_raw_conn).parameters) == ["self", "raw_conn", "maddr"]
    assert inspect.iscoroutinefunction(TrioTCPStream.close)

    async def main() -> None:
        transport = LibP2PTransport(Ed25519PrivateKey.generate(), [])
        network = transport.host.get_network()
        assert isinstance(network._inbound_limiter, trio.CapacityLimiter)
        assert network._handle_inbound_connection.__func__ is Connections.serve

    trio.run(main)


def test_the_network_s_own_handler_of_streams_can_be_replaced():
    async def main() -> None:
        network = new_host().get_network()
        assert callable(network.common_stream_handler)
        network.set_stream_handler(network.common_stream_handler)

    trio.run(main)


def test_no_notifee_uses_the_events_of_streams():
    """`patch_host` omits these events."""

    for method in STREAM_EVENTS:
        assert f'self._notify("{method}"' in inspect.getsource(Swarm)

    async def main() -> None:
        transport = LibP2PTransport(Ed25519PrivateKey.generate(), [])
        notifees = transport.host.get_network().notifees
        assert notifees
        for notifee in notifees:
            for method in STREAM_EVENTS:
                assert set(getattr(type(notifee), method).__code__.co_names) <= {"trio", "lowlevel", "checkpoint"}

    trio.run(main)
