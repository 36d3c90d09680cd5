"""A tap between two peers records a whole conversation and replays one side of it to either end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from echo2.p2p.errors import Unreachable
from tests.support.libp2p_peers import new_peer, running

HANDSHAKE = 200
"""Least bytes of one side's handshake: protocol names, ephemeral key, encrypted identity."""


class Tap:
    """A proxy from `port` to `behind` that records the bytes of both directions."""

    def __init__(self, behind: int) -> None:
        self._behind = behind
        self.port = 0
        self.dialler, self.listener = bytearray(), bytearray()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with listening(self._between) as self.port:
            yield

    async def _between(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection("127.0.0.1", self._behind)
        await asyncio.gather(forward(reader, outer, self.dialler), forward(inner, writer, self.listener))


@asynccontextmanager
async def listening(serve) -> AsyncIterator[int]:
    """Listen, calling `serve` with each connection; yield the port."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, record: bytearray) -> None:
    try:
        while data := await reader.read(1 << 16):
            record += data
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


def port_of(address: str) -> int:
    return int(address.split("/")[4])


def counting(requests: list[bytes]):
    """Return a peer that records its requests in `requests`."""

    async def count(peer: str, request: bytes) -> bytes:
        requests.append(request)
        return b"done"

    peer = new_peer()
    peer.serve("count", count, limit=100)
    return peer


async def recorded(a, b) -> Tap:
    """Record the bytes of one dial and one request from b to a."""
    (address,) = await a.addresses()
    tap = Tap(port_of(address))
    async with tap.open(), running(b):
        await b.dial([address.replace(f"/tcp/{port_of(address)}/", f"/tcp/{tap.port}/")])
        assert await b.request(a.peer_id, "count", b"once", timeout=30) == b"done"
    assert min(len(tap.dialler), len(tap.listener)) > HANDSHAKE
    async with asyncio.timeout(60):
        while await a.peers():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return tap


async def test_a_conversation_replayed_to_the_listening_side_fails_the_handshake_and_calls_no_handler():
    requests: list[bytes] = []
    a, b, c = counting(requests), new_peer(), new_peer()
    async with running(a):
        tap = await recorded(a, b)
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of((await a.addresses())[0]))
        writer.write(tap.dialler)
        answer = bytearray()
        async with asyncio.timeout(60):
            await forward(reader, writer, answer)
        assert answer != tap.listener
        assert await a.peers() == []
        assert requests == [b"once"]
        async with running(c):
            await c.dial(await a.addresses())
            assert await c.request(a.peer_id, "count", b"twice", timeout=30) == b"done"


async def test_a_conversation_replayed_to_the_dialling_side_fails_the_handshake():
    a, b, c = counting([]), new_peer(), new_peer()
    async with running(a):
        tap = await recorded(a, b)
        (address,) = await a.addresses()

    async def replay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(tap.listener)
        await forward(reader, writer, bytearray())

    async with listening(replay) as port, running(c):
        with pytest.raises(Unreachable):
            await c.dial([address.replace(f"/tcp/{port_of(address)}/", f"/tcp/{port}/")])
        assert await c.peers() == []
