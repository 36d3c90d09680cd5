"""A coordinator's network over libp2p and HTTPS together."""

import asyncio
import time

from benchmarks.memory_network.transport import MemoryNetwork
from echo2.p2p.https.client import HttpsClient
from echo2.p2p.limits.bandwidth import BURST_SECONDS
from echo2.p2p.peer.peer import Peer
from tests.support.https import (
    address_of,
    running,
    server_beside,
    shown,
)
from tests.support.peers import payload_file

MB = 1_000_000


async def test_libp2p_and_https_together_keep_to_the_uplink_limit(tmp_path):
    manifest, rate = payload_file(tmp_path / "a", 2 * MB), 4.0 * MB
    memory = MemoryNetwork(0)
    peer, other = Peer(memory.transport("coordinator"), seed=0, uplink=rate), Peer(memory.transport("other"), seed=1)
    server, client = server_beside(peer, uplink=peer), HttpsClient("node", shown().pin)
    async with running(server, client, other):
        await server.share(manifest, tmp_path / "a")
        await client.dial([await address_of(server)])
        await other.dial(["/memory/coordinator/p2p/coordinator"])
        began = time.monotonic()
        await asyncio.gather(client.fetch(manifest, tmp_path / "b"), other.fetch(manifest, tmp_path / "c"))
        assert time.monotonic() - began >= 2 * manifest.length / rate - BURST_SECONDS, (
            "never faster, however quick we are"
        )
        assert (tmp_path / "b").read_bytes() == (tmp_path / "c").read_bytes() == (tmp_path / "a").read_bytes()
