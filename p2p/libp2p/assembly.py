"""A host of the bundled libp2p: its parts put together without those of other transports (QUIC, WebSocket, TLS)."""

from echo2._libp2p.abc import IHost
from echo2._libp2p.crypto.keys import KeyPair
from echo2._libp2p.custom_types import TMuxerOptions, TSecurityOptions
from echo2._libp2p.host.basic_host import BasicHost
from echo2._libp2p.network.config import ConnectionConfig, RetryConfig
from echo2._libp2p.network.swarm import Swarm
from echo2._libp2p.peer.id import ID
from echo2._libp2p.peer.peerstore import PeerStore
from echo2._libp2p.transport.tcp.tcp import TCP
from echo2._libp2p.transport.upgrader import TransportUpgrader


def new_host(
    key_pair: KeyPair, security: TSecurityOptions, muxers: TMuxerOptions, config: ConnectionConfig | None = None
) -> IHost:
    """Return a host that speaks TCP. `security`, `muxers`: the preferred protocol first. It tries each dial once, where
    upstream tries four times: callers count their dials (p2p/limits/dial_backoff.py), and repeat them."""
    peer, store = ID.from_pubkey(key_pair.public_key), PeerStore()
    store.add_key_pair(peer, key_pair)
    network = Swarm(
        peer,
        store,
        TransportUpgrader(secure_transports_by_protocol=security, muxer_transports_by_protocol=muxers),
        transports=[TCP()],
        retry_config=RetryConfig(max_retries=0),
        connection_config=config,
    )
    return BasicHost(network)
