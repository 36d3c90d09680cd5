"""Faults of a foreign peer at every byte: our side logs the reason and keeps answering."""

import contextlib
import logging
from pathlib import Path
from struct import pack

import pytest
import trio

from echo2.p2p.errors import Malformed, Unreachable
from echo2.p2p.libp2p import yamux as libp2p_foreign
from echo2.p2p.libp2p.mux import STREAMS_MAX
from echo2.p2p.limits.bans import FORGIVEN_CHARGES
from echo2.p2p.limits.shares import Shares
from tests.support import stock_peers
from tests.support.interop_peers import Ours, cut, met, on_trio
from tests.support.peers import payload_file
from tests.support.stock_peers import StockPeer, framed, packed, receive, upstream

INetConn, INetStream = upstream("abc").INetConn, upstream("abc").INetStream
IOException = upstream("io.exceptions").IOException
RawConnError = upstream("network.connection.exceptions").RawConnError
StreamError = upstream("network.stream.exceptions").StreamError
Yamux, MAX_WINDOW_SIZE = (
    upstream("stream_muxer.yamux.yamux").Yamux,
    upstream("stream_muxer.yamux.yamux").MAX_WINDOW_SIZE,
)

REQUEST = framed(b"head") + framed(b"\x80")
ASK = framed(packed("a", bytes(32))) + framed(packed("w", [0]))


@pytest.fixture
def p2p_log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """The log of our side, debug records included."""
    caplog.set_level(logging.DEBUG, "p2p")
    return caplog


async def read_to_end(stream: INetStream) -> bytes:
    """Return all received bytes until the end, which may be a reset."""
    everything = b""
    try:
        while data := await stream.read(1 << 16):
            everything += data
    except StreamError:
        pass
    return everything


async def lives(one: Ours, other: StockPeer) -> None:
    """Assert that a correct request is answered on the same connection after a fault."""
    assert (await other.ask(one.peer.peer_id, "head", b"\x80"))[0] == 0


@on_trio
async def test_a_request_that_ends_at_any_byte_is_answered_or_reset_with_the_reason(p2p_log) -> None:
    async with met("stock") as (one, other):
        for end in range(len(REQUEST)):
            stream = await other.open(one.peer.peer_id, stock_peers.RPC)
            await stream.write(REQUEST[:end])
            await stream.close_write()  # type: ignore[attr-defined]
            assert await read_to_end(stream) == (b"" if end else framed(b"\x02no such method")), end
            await stream.reset()
        await lives(one, other)
    cut_off = p2p_log.text.count("ended in the middle of a frame")
    assert (cut_off, p2p_log.text.count("sent no request")) == (len(REQUEST) - 2, 1)
    assert not [record for record in p2p_log.records if record.levelno > logging.INFO and record.name == "p2p"]


@pytest.mark.parametrize(
    ("protocol", "bytes_"), [(stock_peers.RPC, REQUEST), (stock_peers.CHUNKS, ASK)], ids=["rpc", "chunks"]
)
@on_trio
@pytest.mark.slow_but("rpc")
async def test_a_stream_that_is_reset_at_any_byte_ends_that_stream_only(protocol: str, bytes_: bytes, p2p_log) -> None:
    async with met("stock") as (one, other):
        for end in range(len(bytes_)):
            stream = await other.open(one.peer.peer_id, protocol)
            await stream.write(bytes_[:end])
            await stream.reset()
        await lives(one, other)
    # A reset that overtakes the frame before it shows as the end of that frame.
    assert "reset" in p2p_log.text.lower() or "ended in the middle of a frame" in p2p_log.text
    assert not [record for record in p2p_log.records if record.levelno > logging.INFO and record.name == "p2p"]


@on_trio
@pytest.mark.slow
async def test_a_chunk_stream_that_ends_at_any_byte_ends_that_stream_only(p2p_log) -> None:
    async with met("stock") as (one, other):
        for end in range(len(ASK)):
            stream = await other.open(one.peer.peer_id, stock_peers.CHUNKS)
            await stream.write(ASK[:end])
            await stream.close_write()  # type: ignore[attr-defined]
            assert await read_to_end(stream) in (b"", framed(packed("n", []))), end
            await stream.reset()
        await lives(one, other)
    assert p2p_log.text.count("ended in the middle of a frame") == len(ASK) - 2


WRONG = {
    "a name longer than its limit": (
        stock_peers.RPC,
        framed(bytes(65)),
        "announces a frame of 65 bytes, the limit is 64",
    ),
    "a name of 4 GiB": (stock_peers.RPC, b"\xff" * 4, "announces a frame of 4294967295 bytes"),
    "a length shorter than what follows": (stock_peers.RPC, pack(">I", 3) + b"head" + framed(b"\x80"), ""),
    "a chunk frame longer than its limit": (stock_peers.CHUNKS, pack(">I", 20545), "announces a frame of 20545 bytes"),
    "a chunk frame that is no MessagePack": (stock_peers.CHUNKS, framed(b"\xc1"), "chunk request"),
    "a chunk stream that begins with a ChunkRequest": (
        stock_peers.CHUNKS,
        framed(packed("w", [0])),
        "must begin with a PayloadRequest",
    ),
    "an empty chunk frame": (stock_peers.CHUNKS, framed(b""), "chunk request"),
    "a hash of 31 bytes": (stock_peers.CHUNKS, framed(packed("a", bytes(31))), "chunk request"),
    "a PayloadRequest twice": (stock_peers.CHUNKS, 2 * framed(packed("a", bytes(32))), "second PayloadRequest"),
    "an index of a million million": (stock_peers.CHUNKS, ASK + framed(packed("w", [10**12])), "chunk request"),
}


@on_trio
async def test_a_wrong_frame_is_refused_with_the_reason(p2p_log) -> None:
    async with met("stock") as (one, other):
        for fault, (protocol, bytes_, why) in WRONG.items():
            p2p_log.clear()
            stream = await other.open(one.peer.peer_id, protocol)
            await stream.write(bytes_)
            assert await read_to_end(stream) in (b"", framed(packed("n", [])), framed(b"\x02no such method")), fault
            await lives(one, other)
            assert why in p2p_log.text, fault


ANSWER = framed(b"") + framed(b"\x00abc")


@pytest.mark.parametrize("how", ["ends", "is reset"])
@on_trio
async def test_an_answer_cut_off_at_any_byte_is_an_error_that_names_the_cut(how: str) -> None:
    async with met("stock") as (one, other):
        left = iter([*range(len(ANSWER)), len(ANSWER)])

        async def answer(stream: INetStream) -> None:
            await receive(stream), await receive(stream)
            end = next(left)
            await stream.write(ANSWER[:end])
            await (stream.reset() if how == "is reset" and end < len(ANSWER) else stream.close())

        other.host.set_stream_handler(stock_peers.RPC, answer)  # type: ignore[arg-type]
        for _ in ANSWER:
            with pytest.raises((Malformed, Unreachable), match=r"middle of a frame|gave no answer|[Rr]eset"):
                await one.peer.request(other.peer_id, "head", b"", timeout=60)
        assert await one.peer.request(other.peer_id, "head", b"", timeout=60) == b"abc"


LIES = {
    "other bytes": lambda index, proof, data: (index, proof, bytes(len(data))),
    "a chunk that is too short": lambda index, proof, data: (index, proof, data[:-1]),
    "a proof cut short": lambda index, proof, data: (index, proof[:-1], data),
    "another chunk's proof": lambda index, proof, data: (index ^ 1, proof, data),
    "a chunk beyond the end": lambda index, proof, data: (index + 19, proof, data),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
@on_trio
async def test_a_foreign_holder_that_lies_is_dropped_and_nothing_of_it_is_stored(lie, tmp_path: Path, p2p_log) -> None:
    async with met("stock") as (one, other), trio.open_nursery() as nursery:
        manifest = payload_file(tmp_path / "theirs", 300_000)
        other.hold((tmp_path / "theirs").read_bytes(), cut(manifest), lie)
        nursery.start_soon(one.peer.fetch, manifest, tmp_path / "fetched")
        await stock_peers.until(lambda: not one.transport.peers())
        assert not (tmp_path / "fetched").exists()
        assert not any((tmp_path / "fetched.part").read_bytes())
        nursery.cancel_scope.cancel()
    assert other.peer_id in p2p_log.text


# --- below streams ---------------------------------------------------------------------------------------------------

YAMUX = {
    "an unknown type": pack("!BBHII", 0, 9, 0, 1, 0),
    "another version": pack("!BBHII", 7, 0, 0, 1, 0),
    "data of an unknown stream": pack("!BBHII", 0, 0, 0, 99, 5) + b"hello",
    "data longer than any window": pack("!BBHII", 0, 0, 0, 1, MAX_WINDOW_SIZE + 1),
    "a window beyond 32 bits": 3 * pack("!BBHII", 0, 1, 0, 1, 0xFFFFFFFF),
    "a stream opened twice": 2 * pack("!BBHII", 0, 1, 1, 77, 0),
    "a stream opened, ended and reset at once": pack("!BBHII", 0, 1, 1 | 4 | 8, 77, 0),
    "a stream of our own side opened": pack("!BBHII", 0, 1, 1, 76, 0),
    "stream 0 opened": pack("!BBHII", 0, 1, 1, 0, 0),
    "every flag": pack("!BBHII", 0, 0, 0xFFFF, 77, 1) + b"x",
    "leaving for no known reason": pack("!BBHII", 0, 3, 0, 0, 0xFFFFFFFF),
    "half a header": b"\x00" * 5,
    "no yamux at all": bytes(range(256)) * 4,
}


@on_trio
@pytest.mark.slow
async def test_malformed_yamux_costs_its_connection_at_most() -> None:
    async with met("ours") as (one, honest):
        for fault, bytes_ in YAMUX.items():
            async with stock_peers.running() as other:
                await other.dial(await one.peer.addresses())
                await connection(other).secured_conn.write(bytes_)
                await connection(other).secured_conn.close()
                await stock_peers.until(lambda peer=other.peer_id: peer not in one.transport.peers())
            assert honest.peer_id in one.transport.peers(), fault
            await lives(one, honest)


@on_trio
@pytest.mark.slow
async def test_a_peer_that_overruns_its_windows_is_disconnected_and_banned_if_it_repeats_it(
    monkeypatch, p2p_log
) -> None:
    monkeypatch.setattr(libp2p_foreign, "UNREAD_MAX", 2 << 20)

    at_work: list[bytes] = []

    async def slow(peer: str, request: bytes) -> bytes:
        at_work.append(request)
        await trio.sleep_forever()
        return b""

    async with met("ours") as (one, honest), stock_peers.running() as other:
        one.peer.serve("slow", slow, limit=10)
        for number in range(FORGIVEN_CHARGES + 1):
            await other.dial(await one.peer.addresses())
            stream = await other.open(one.peer.peer_id, stock_peers.RPC)
            await stream.write(framed(b"slow") + framed(b""))
            await stock_peers.until(lambda number=number: len(at_work) > number)
            await flood(connection(other), stream)
            await stock_peers.until(lambda: other.peer_id not in one.transport.peers())
            await stock_peers.until(lambda: not other.host.get_connected_peers())
        await stock_peers.until(lambda: one.transport.connections.banned_for(other.peer_id) > 0)
        await lives(one, honest)
    assert p2p_log.text.count("bytes received and not read") == FORGIVEN_CHARGES + 2  # each, and the ban


async def flood(yamux: Yamux, stream: INetStream) -> None:
    """Send 64 MiB on a stream, whatever its window."""
    header = pack("!BBHII", 0, 0, 0, stream.muxed_stream.stream_id, 1 << 20)  # type: ignore[attr-defined]
    with contextlib.suppress(RawConnError, IOException):
        for _ in range(64):
            await yamux.secured_conn.write(header + bytes(1 << 20))


@pytest.mark.parametrize("first", [1001, 1000], ids=["its own numbers", "ours"])
@on_trio
@pytest.mark.slow_but("its own numbers")
async def test_a_stream_too_many_is_reset_and_other_peers_are_still_served(first: int) -> None:
    async with met("stock") as (one, other), stock_peers.running() as honest:
        await honest.dial(await one.peer.addresses())
        opened = b"".join(pack("!BBHII", 0, 1, 1, first + 2 * number, 0) for number in range(2 * STREAMS_MAX))
        await connection(other).secured_conn.write(opened)
        (theirs,) = [c for c in one.transport.connections.open if str(c.muxed_conn.peer_id) == other.peer_id]
        await stock_peers.until(lambda: open_ones(theirs) > STREAMS_MAX // 2)
        await lives(one, honest)
        assert open_ones(theirs) <= STREAMS_MAX


@on_trio
@pytest.mark.slow
async def test_the_connection_of_a_stock_peer_with_most_streams_gives_way_to_others() -> None:
    async with met("stock") as (one, other), stock_peers.running() as honest:
        await honest.dial(await one.peer.addresses())
        one.transport.connections.streams = Shares(100, 75)
        opened = b"".join(pack("!BBHII", 0, 1, 1, 1001 + 2 * number, 0) for number in range(90))
        await connection(other).secured_conn.write(opened)
        await stock_peers.until(lambda: one.transport.peers() == [honest.peer_id])
        await lives(one, honest)
        assert one.transport.connections.streams.total < 10


def open_ones(connection: INetConn) -> int:
    """Return the number of streams that the other side has open."""
    return sum(not stream.muxed_stream.is_initiator for stream in connection.get_streams())  # type: ignore[attr-defined]


def connection(other: StockPeer) -> Yamux:
    (only,) = other.host.get_network().get_connections()
    assert isinstance(only.muxed_conn, Yamux)
    return only.muxed_conn
