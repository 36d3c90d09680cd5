"""A foreign peer for tests: a libp2p host without code of p2p, with this project's protocols implemented anew from
docs/protocol.

It is a stock py-libp2p host where that is installed (`make interop`), and one of the bundled libp2p otherwise. This
module does not import p2p. Hashes are BLAKE3, messages MessagePack, both by their own libraries.
"""

import importlib.util
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import msgpack
import trio
from blake3 import blake3

STOCK = importlib.util.find_spec("libp2p") is not None


def upstream(module: str) -> Any:
    """Return a module of the stock libp2p, or of the bundled one."""
    return import_module(f"libp2p.{module}" if STOCK else f"echo2._libp2p.{module}")


if STOCK:
    from libp2p import new_host
    from libp2p.crypto.rsa import create_new_key_pair as create_rsa_key_pair
    from multiaddr import Multiaddr
else:
    from echo2._libp2p.multiaddr import Multiaddr
    from tests.support.rsa_identity import create_new_key_pair as create_rsa_key_pair
    from tests.support.upstream_hosts import new_host

IDENTIFY = upstream("identity.identify.identify").ID
Identify = upstream("identity.identify.pb.identify_pb2").Identify
IHost, INetStream = upstream("abc").IHost, upstream("abc").INetStream
ID = upstream("peer.id").ID
StreamEOF = upstream("network.stream.exceptions").StreamEOF
RPC, CHUNKS = "/echo2/rpc/1", "/echo2/chunks/1"


@dataclass(frozen=True)
class Cut:
    """A payload as a manifest describes it."""

    payload: bytes
    length: int
    chunk_size: int
    root: bytes

    @property
    def chunks(self) -> int:
        return -(-self.length // self.chunk_size)


class StockPeer:
    """A running stock host; see `running`."""

    def __init__(self, host: IHost) -> None:
        self.host = host

    @property
    def peer_id(self) -> str:
        return str(self.host.get_id())

    def addresses(self) -> list[str]:
        return [str(address) for address in self.host.get_addrs()]

    async def dial(self, addresses: Sequence[str]) -> None:
        await self.host.connect(upstream("peer.peerinfo").info_from_p2p_addr(Multiaddr(addresses[0])))

    async def open(self, peer: str, protocol: str) -> INetStream:
        return await self.host.new_stream(ID.from_string(peer), [protocol])  # type: ignore[list-item]

    async def ping(self, peer: str) -> int:
        """Send two pings; return how many were answered."""
        return len(await upstream("host.ping").PingService(self.host).ping(ID.from_string(peer), 2))

    async def identify(self, peer: str) -> Identify:
        stream = await self.open(peer, IDENTIFY)
        message = Identify()
        message.ParseFromString(await upstream("utils.varint").read_varint_prefixed_bytes(stream))
        await stream.close()
        return message

    async def push(self, peer: str, topic: str, data: bytes) -> bytes:
        """Push a message of gossip; return the answer."""
        return await self.ask(peer, "gossip", msgpack.packb({"topic": topic, "data": data}))

    async def ask(self, peer: str, method: str, request: bytes) -> bytes:
        """Send a request; return the status byte and the rest of the answer."""
        stream = await self.open(peer, RPC)
        await stream.write(framed(method.encode()) + framed(request))
        await stream.close_write()  # type: ignore[attr-defined]
        while (answer := await receive(stream)) == b"":
            pass
        assert answer is not None, "the stream ended without an answer"
        assert await receive(stream) is None
        await stream.close()
        return answer

    def serve(self, method: str, handler: Callable[[bytes], bytes]) -> None:
        """Answer one method, after a frame that says "still working"."""

        async def answer(stream: INetStream) -> None:
            name, request = await receive(stream), await receive(stream)
            assert await receive(stream) is None
            assert request is not None
            known = name == method.encode()
            await stream.write(framed(b""))
            await stream.write(framed(b"\x00" + handler(request) if known else b"\x02no such method"))
            await stream.close()

        self.host.set_stream_handler(RPC, answer)  # type: ignore[arg-type]

    async def fetch(self, peer: str, cut: Cut, indices: Sequence[int]) -> dict[int, bytes]:
        """Fetch these chunks; return them verified."""
        stream = await self.open(peer, CHUNKS)
        await stream.write(framed(packed("a", cut.payload)) + framed(packed("w", indices)))
        chunks_got: dict[int, bytes] = {}
        while len(chunks_got) < len(indices):
            frame = await receive(stream)
            assert frame is not None, "the holder ended before all was here"
            letter, *fields = msgpack.unpackb(frame)
            if letter == "c":
                index, proof, data = fields
                assert index in indices
                assert leads_to_root(cut, index, proof, data), f"chunk {index} is not of this payload"
                chunks_got[index] = data
        await stream.close_write()  # type: ignore[attr-defined]
        await stream.reset()
        return chunks_got

    def hold(self, content: bytes, cut: Cut, lie: Callable[..., tuple[object, ...]] | None = None) -> None:
        """Serve a payload. `lie`: (index, proof, data) -> the message sent instead."""
        pieces = [content[at : at + cut.chunk_size] for at in range(0, cut.length, cut.chunk_size)]

        async def serve(stream: INetStream) -> None:
            ask = await receive(stream)
            assert ask is not None
            assert msgpack.unpackb(ask) == ["a", cut.payload]
            bitmap = ((1 << len(pieces)) - 1).to_bytes(-(-len(pieces) // 8), "little")
            await stream.write(framed(packed("h", bitmap)))
            while (frame := await receive(stream)) is not None:
                letter, *fields = msgpack.unpackb(frame)
                for index in fields[0] if letter == "w" and fields else []:
                    chunk = index, proof_of(pieces, index), pieces[index]
                    await stream.write(framed(packed("c", *(lie(*chunk) if lie else chunk))))
            await stream.close()

        self.host.set_stream_handler(CHUNKS, serve)  # type: ignore[arg-type]


@asynccontextmanager
async def running(host: IHost | None = None) -> AsyncIterator[StockPeer]:
    """Run a stock host on loopback, with upstream's defaults except for an Ed25519 identity."""
    host = host or new_host()
    async with host.run(listen_addrs=[Multiaddr("/ip4/127.0.0.1/tcp/0")]):
        try:
            yield StockPeer(host)
        finally:
            await hang_up(host)


def rsa_host() -> IHost:
    return new_host(key_pair=create_rsa_key_pair())


async def hang_up(host: IHost) -> None:
    """Close every socket: a stopping host of upstream leaves them open."""
    with trio.CancelScope(shield=True):
        for connection in host.get_network().get_connections():
            await connection.muxed_conn.secured_conn.close()


# --- frames and proofs -----------------------------------------------------------------------------------------------


def framed(frame: bytes) -> bytes:
    return len(frame).to_bytes(4, "big") + frame


async def receive(stream: INetStream) -> bytes | None:
    """Read one frame; None at the end."""
    head = await _exactly(stream, 4)
    return None if head is None else await _exactly(stream, int.from_bytes(head, "big"))


async def _exactly(stream: INetStream, count: int) -> bytes | None:
    data = b""
    while len(data) < count:
        try:
            data += await stream.read(count - len(data))
        except StreamEOF:
            assert not data, "the other side ended in the middle of a frame"
            return None
    return data


def packed(letter: str, *fields: object) -> bytes:
    return msgpack.packb([letter, *fields])  # type: ignore[no-any-return]


def leads_to_root(cut: Cut, index: int, proof: Sequence[bytes], data: bytes) -> bool:
    """Tell whether a chunk is in the tree whose root the manifest names."""
    if len(data) != min(cut.chunk_size, cut.length - index * cut.chunk_size):
        return False
    digest, place, count, rest = leaf(data), index, cut.chunks, list(proof)
    while count > 1:
        if place ^ 1 < count:
            if not rest:
                return False
            sibling = rest.pop(0)
            digest = node(sibling, digest) if place & 1 else node(digest, sibling)
        place, count = place >> 1, (count + 1) >> 1
    return not rest and digest == cut.root


def root_of(content: bytes, chunk_size: int) -> bytes:
    row = [leaf(content[at : at + chunk_size]) for at in range(0, len(content), chunk_size)]
    while len(row) > 1:
        row = risen(row)
    return row[0]


def proof_of(pieces: Sequence[bytes], index: int) -> list[bytes]:
    row, proof = [leaf(piece) for piece in pieces], []
    while len(row) > 1:
        if index ^ 1 < len(row):
            proof.append(row[index ^ 1])
        row, index = risen(row), index >> 1
    return proof


def risen(row: list[bytes]) -> list[bytes]:
    """Return the next row of the tree; an odd node at the end rises unpaired."""
    odd = row[-1:] if len(row) & 1 else []
    return [node(row[at], row[at + 1]) for at in range(0, len(row) - 1, 2)] + odd


def leaf(chunk: bytes) -> bytes:
    return blake3(b"\x00" + chunk).digest()


def node(left: bytes, right: bytes) -> bytes:
    return blake3(b"\x01" + left + right).digest()


async def until(what: Callable[[], bool]) -> None:
    """Wait until `what()` is True, by polling."""
    with trio.fail_after(60):
        while not what():  # noqa: ASYNC110
            await trio.sleep(0.01)
