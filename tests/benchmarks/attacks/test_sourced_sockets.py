"""Peers that dial from chosen addresses of the loopback."""

import sys

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.attacks.foreign_loopback import subnet_of
from benchmarks.attacks.sourced_sockets import dialled_from
from echo2.p2p.libp2p.transport import LibP2PTransport
from echo2.p2p.limits.party import Parties
from echo2.p2p.limits.subnets import PeerLimits
from echo2.p2p.peer.peer import Peer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have one address of the loopback")


@pytest.mark.slow
def test_a_listening_peer_sees_each_dialling_one_come_from_its_own_subnet() -> None:
    async def main() -> list[str]:
        limits = PeerLimits(parties=Parties(subnet_of))
        host = Peer(LibP2PTransport(Ed25519PrivateKey.generate(), ["/ip4/127.0.0.1/tcp/0"], limits=limits), seed=0)
        parties = list[str]()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.run)
            await host.ready()
            for source in ("127.9.8.1", "127.9.9.1"):
                peer = Peer(LibP2PTransport(Ed25519PrivateKey.generate(), []), seed=0)
                nursery.start_soon(peer.run)
                await peer.ready()
                with dialled_from(source):
                    await peer.dial(await host.addresses())
                parties.append(host.origin(peer.peer_id).party)
            nursery.cancel_scope.cancel()
        return parties

    assert trio.run(main) == ["127.9.8.0/24", "127.9.9.0/24"]
