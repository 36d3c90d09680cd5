"""Hosts of the bundled libp2p with upstream's own Noise and yamux, without a patch of ours."""

from echo2._libp2p.abc import IHost
from echo2._libp2p.crypto.keys import KeyPair
from echo2._libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from echo2._libp2p.custom_types import TProtocol
from echo2._libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from echo2._libp2p.security.noise.transport import Transport as Noise
from echo2._libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from echo2._libp2p.stream_muxer.yamux.yamux import Yamux
from echo2.p2p.libp2p import assembly
from echo2.p2p.libp2p.identity_keys import create_new_key_pair


def new_host(key_pair: KeyPair | None = None, *, security: str = NOISE) -> IHost:
    """Return such a host. `security`: the name under which it offers Noise."""
    pair = key_pair or create_new_key_pair()
    noise = Noise(pair, noise_privkey=create_noise_key_pair().private_key)
    return assembly.new_host(pair, {TProtocol(security): noise}, {TProtocol(YAMUX): Yamux})
