"""A coordinator's network in a process without free descriptors: connections wait, and no part ends."""

import asyncio
import socket

import pytest

from echo2.p2p.identity import generate_key
from echo2.p2p.libp2p.threaded_network import ThreadedPeer
from echo2.runtime import descriptors
from echo2.runtime.descriptors import SHORTAGES
from tests.support.https import address_of, served
from tests.support.libp2p_peers import LOOPBACK, running
from tests.support.open_files import everything_taken


async def knocked(port: int) -> None:
    """Connect to `port` while no descriptor is free; return with descriptors free, once a shortage was counted."""
    met = SHORTAGES.count
    with socket.socket() as visitor:
        visitor.setblocking(False)
        with everything_taken():
            await asyncio.get_running_loop().sock_connect(visitor, ("127.0.0.1", port))
            async with asyncio.timeout(30):
                while SHORTAGES.count == met:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)


async def test_libp2p_takes_connections_again_once_descriptors_are_free(caplog: pytest.LogCaptureFixture) -> None:
    descriptors.watch()
    coordinator, node = ThreadedPeer(generate_key(), [LOOPBACK]), ThreadedPeer(generate_key(), [])
    async with running(coordinator), running(node):
        (address,) = await coordinator.addresses()
        await knocked(int(address.split("/")[4]))
        assert await node.dial([address]) == coordinator.peer_id
    assert "retrying in" not in caplog.text, "upstream says it ten times a second"


async def test_https_takes_connections_again_once_descriptors_are_free() -> None:
    async with served() as server:
        address = await address_of(server)
        port = int(address.split("/")[4])
        await knocked(port)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        assert not reader.at_eof()
