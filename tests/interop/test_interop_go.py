"""Our peer with go-libp2p: the daemon `p2pd`, which `make interop` takes from the wheel of hivemind. `INTEROP_P2PD`
names another one."""

import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from echo2._libp2p.custom_types import TProtocol
from echo2._libp2p.peer.id import ID
from echo2.p2p.identity import peer_id
from echo2.p2p.libp2p.yamux import BoundedYamux
from echo2.p2p.wire_types import decode
from echo2.protocol.versions import HeadResponse
from tests.support import go_peer
from tests.support.go_peer import P2PD, GoPeer, Stream
from tests.support.interop_peers import BOTH_WAYS, Ours, on_trio, ours, ping, sealed_head
from tests.support.stock_peers import CHUNKS, RPC, framed, receive, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.access(P2PD, os.X_OK), reason=f"there is no {P2PD}: run make interop"),
]


@asynccontextmanager
async def met(dialler: str) -> AsyncIterator[tuple[Ours, GoPeer]]:
    """Run both peers, connected. `dialler`: "ours" or "stock"."""
    one = ours()
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="p2pd") as folder:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.peer.run)
            await one.peer.ready()
            async with go_peer.running(Path(folder)) as other:
                if dialler == "ours":
                    await one.peer.dial([other.address])
                else:
                    (address,) = await one.peer.addresses()
                    await other.dial(one.peer.peer_id, int(address.split("/")[4]))
                await until(lambda: other.peer_id in one.transport.peers())
                yield one, other
            nursery.cancel_scope.cancel()


async def asked(other: GoPeer, peer: str, method: str, request: bytes) -> bytes:
    """Let the go host send a request; return the status byte and the rest of the answer. The daemon cannot end one
    direction of a stream alone, so the request is not ended."""
    stream = await other.open(peer, RPC)
    await stream.send(framed(method.encode()) + framed(request))
    while (answer := await stream.frame()) == b"":
        pass
    assert answer is not None, "the stream ended without an answer"
    await stream.socket.aclose()
    return answer


async def echo(stream: Stream) -> None:
    """Send back each frame."""
    while (frame := await stream.frame()) is not None:
        await stream.send(framed(frame[::-1]))


@BOTH_WAYS
@on_trio
async def test_a_go_host_speaks_noise_and_yamux_with_us_and_both_ping(dialler: str) -> None:
    async with met(dialler) as (one, other):
        (connection,) = one.transport.connections.open
        assert type(connection.muxed_conn) is BoundedYamux
        assert await other.peers() == [one.peer.peer_id]
        assert await ping(one, other.peer_id) == 2
        stream = await other.open(one.peer.peer_id, "/ipfs/ping/1.0.0")
        for byte in (b"a", b"b"):
            await stream.send(byte * 32)
            assert await stream.exactly(32) == byte * 32
        await stream.socket.aclose()


@BOTH_WAYS
@on_trio
async def test_a_go_host_learns_our_identity_and_protocols(dialler: str) -> None:
    async with met(dialler) as (one, other):
        stream = await other.open(one.peer.peer_id, "/ipfs/id/1.0.0")
        told = await stream.delimited()
        await stream.socket.aclose()
        key = next(value for number, value in told if number == 1)
        assert isinstance(key, bytes)
        assert peer_id(key[-32:]) == one.peer.peer_id
        assert {RPC.encode(), CHUNKS.encode()} <= {value for number, value in told if number == 3}
        assert [value for number, value in told if number == 2]


@BOTH_WAYS
@on_trio
async def test_streams_carry_bytes_both_ways_and_those_of_an_unknown_protocol_are_refused(dialler: str) -> None:
    async with met(dialler) as (one, other), other.serving("/interop/echo/1", echo):
        stream = await one.transport.host.new_stream(ID.from_string(other.peer_id), [TProtocol("/interop/echo/1")])
        for size in (1, 70_000, 1 << 20):
            sent = os.urandom(size)
            await stream.write(framed(sent))
            assert await receive(stream) == sent[::-1]
        await stream.reset()
        with pytest.raises(RuntimeError, match="protocol"):
            await other.open(one.peer.peer_id, "/interop/nothing/1")


@BOTH_WAYS
@on_trio
async def test_requests_of_a_go_host_are_answered_and_refused(dialler: str) -> None:
    async with met(dialler) as (one, other):
        answer = await asked(other, one.peer.peer_id, "head", b"\x80")
        assert answer[0] == 0
        assert decode(answer[1:], HeadResponse).head == sealed_head(7)
        assert (await asked(other, one.peer.peer_id, "head", bytes(1025)))[0] == 1
        assert (await asked(other, one.peer.peer_id, "nonsense", b""))[0] == 2
