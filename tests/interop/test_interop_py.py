"""Our peer with a stock py-libp2p host: upstream's Noise and yamux, dialled from either side."""

from pathlib import Path

import msgpack
import pytest

from echo2.p2p.errors import Declined
from echo2.p2p.identity import peer_id
from echo2.p2p.libp2p.yamux import BoundedYamux
from echo2.p2p.payload_manifest import Manifest
from echo2.p2p.wire_types import decode
from echo2.protocol.versions import HeadResponse
from tests.support import stock_peers
from tests.support.interop_peers import BOTH_WAYS, TOPIC, cut, met, on_trio, ping, sealed_head
from tests.support.peers import payload_file


@BOTH_WAYS
@on_trio
async def test_a_stock_host_speaks_yamux_with_us_and_both_ping(dialler: str) -> None:
    async with met(dialler) as (one, other):
        (connection,) = one.transport.connections.open
        assert type(connection.muxed_conn) is BoundedYamux
        assert await other.ping(one.peer.peer_id) == 2
        assert await ping(one, other.peer_id) == 2


@BOTH_WAYS
@on_trio
async def test_a_stock_host_learns_our_identity_and_protocols(dialler: str) -> None:
    async with met(dialler) as (one, other):
        identified = await other.identify(one.peer.peer_id)
        assert {stock_peers.RPC, stock_peers.CHUNKS} <= set(identified.protocols)
        assert peer_id(identified.public_key[-32:]) == one.peer.peer_id
        assert identified.listen_addrs


@BOTH_WAYS
@on_trio
async def test_requests_are_answered_in_both_directions(dialler: str) -> None:
    async with met(dialler) as (one, other):
        other.serve("reverse", lambda request: request[::-1])
        answer = await other.ask(one.peer.peer_id, "head", b"\x80")
        assert answer[0] == 0
        assert decode(answer[1:], HeadResponse).head == sealed_head(7)
        assert await one.peer.request(other.peer_id, "reverse", b"abc", timeout=60) == b"cba"


@BOTH_WAYS
@on_trio
async def test_refusals_are_understood_in_both_directions(dialler: str) -> None:
    async with met(dialler) as (one, other):
        other.serve("reverse", lambda request: request[::-1])
        assert (await other.ask(one.peer.peer_id, "head", bytes(1025)))[0] == 1
        assert (await other.ask(one.peer.peer_id, "nonsense", b""))[0] == 2
        with pytest.raises(Declined, match="no such method"):
            await one.peer.request(other.peer_id, "nonsense", b"", timeout=60)


@BOTH_WAYS
@on_trio
async def test_a_head_is_gossiped_in_both_directions(dialler: str) -> None:
    async with met(dialler) as (one, other):
        pushed: list[bytes] = []
        other.serve("gossip", lambda request: pushed.append(request) or b"")
        await one.peer.publish(TOPIC, sealed_head(8))
        await stock_peers.until(lambda: bool(pushed))
        assert [msgpack.unpackb(request) for request in pushed] == [{"topic": TOPIC, "data": sealed_head(8)}]
        assert await other.push(one.peer.peer_id, TOPIC, sealed_head(9)) == b"\x00"
        assert [head.version for head in one.heard] == [9]


@BOTH_WAYS
@on_trio
async def test_chunks_are_fetched_and_verified_in_both_directions(dialler: str, tmp_path: Path) -> None:
    async with met(dialler) as (one, other):
        mine, theirs = payload_file(tmp_path / "mine", 300_000), payload_file(tmp_path / "theirs", 300_000, seed=1)
        await one.peer.share(mine, tmp_path / "mine")
        content = (tmp_path / "mine").read_bytes()
        fetched = await other.fetch(one.peer.peer_id, cut(mine), [18, 0, 7])
        assert fetched == {index: content[index << 14 : (index + 1) << 14] for index in (0, 7, 18)}
        other.hold((tmp_path / "theirs").read_bytes(), cut(theirs))
        await one.peer.fetch(theirs, tmp_path / "fetched")
        assert (tmp_path / "fetched").read_bytes() == (tmp_path / "theirs").read_bytes()


@on_trio
@pytest.mark.slow
async def test_a_large_chunk_and_a_large_answer_pass_stock_yamux(tmp_path: Path) -> None:
    async with met("stock") as (one, other):
        manifest = payload_file(tmp_path / "mine", 3_000_000)
        content = (tmp_path / "mine").read_bytes()
        root = stock_peers.root_of(content, 1 << 20)
        large = Manifest(hash=manifest.hash, length=manifest.length, chunk_size=1 << 20, chunk_root=root)
        await one.peer.share(large, tmp_path / "mine")
        fetched = await other.fetch(one.peer.peer_id, cut(large), [0, 1, 2])
        assert b"".join(fetched[index] for index in range(3)) == content
        other.serve("large", lambda request: bytes(8 << 20))
        assert await one.peer.request(other.peer_id, "large", b"", timeout=60) == bytes(8 << 20)


@on_trio
async def test_a_stock_host_with_an_rsa_identity_is_served_as_well() -> None:
    async with met("stock", stock_peers.rsa_host()) as (one, other):
        assert (await other.ask(one.peer.peer_id, "head", b"\x80"))[0] == 0
