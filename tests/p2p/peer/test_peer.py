"""A peer on the in-memory network and a fake clock: its limit on requests, and how it starts."""

import anyio
import pytest

from benchmarks.memory_network.transport import MemoryNetwork
from echo2.p2p.errors import LocalNetworkFault
from echo2.p2p.limits.request_slots import PER_PEER
from echo2.p2p.peer.peer import Peer
from tests.support.clock import run_fake
from tests.support.floods import serving
from tests.support.peers import running


def test_one_peer_has_no_more_than_its_share_of_requests_in_progress():
    working, most = 0, 0

    async def busy(peer: str, request: bytes) -> bytes:
        nonlocal working, most
        working += 1
        most = max(most, working)
        await anyio.sleep(1)
        working -= 1
        return b""

    async def main():
        network = MemoryNetwork(1)
        server = serving(network, echo=busy)
        client = Peer(network.transport("client"), seed=1)
        async with running(server, client), anyio.create_task_group() as tasks:
            async with anyio.create_task_group() as many:
                for _ in range(3 * PER_PEER):
                    many.start_soon(lambda: client.request("server", "echo", b"", timeout=10))
            tasks.cancel_scope.cancel()

    run_fake(main)
    assert most == PER_PEER


def test_a_failure_to_listen_is_raised_by_ready_too():
    network = MemoryNetwork(1)
    transport = network.transport("a")

    async def broken(listening) -> None:
        raise LocalNetworkFault("the port is taken: choose another")

    transport.run = broken  # type: ignore[method-assign]
    peer = Peer(transport, seed=0)

    async def main():
        with pytest.raises(LocalNetworkFault, match="port"):
            await peer.run()
        with pytest.raises(LocalNetworkFault, match="port"):
            await peer.ready()

    run_fake(main)
