"""A go-libp2p host for tests: the daemon `p2pd` of the wheel of hivemind, commanded over a Unix socket by its own
protocol (p2pd.proto of go-libp2p-daemon). This module imports nothing of p2p.

A command is a protobuf message behind its length, a varint, and so is its answer. A stream that was opened, or that a
peer opened to us, is then the socket itself.
"""

import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import base58
import trio

from tests.support.paths import ROOT

P2PD = Path(os.environ.get("INTEROP_P2PD") or ROOT / ".interop" / "p2pd")
IDENTIFY, CONNECT, STREAM_OPEN, STREAM_HANDLER, LIST_PEERS = range(5)
"""Types of commands. LIST_PEERS is 5: 4 is the DHT's, which is not used."""
_FIELDS: Final = {CONNECT: 2, STREAM_OPEN: 3, STREAM_HANDLER: 4}
"""Type of a command -> the number of its field in Request."""
Fields = list[tuple[int, int | bytes]]


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def message(fields: Fields) -> bytes:
    """Encode a protobuf message of numbers and bytes."""
    out = b""
    for number, value in fields:
        whole = isinstance(value, int)
        out += varint(number << 3 | (0 if whole else 2))
        out += varint(value) if isinstance(value, int) else varint(len(value)) + value
    return out


def fields_of(data: bytes) -> Fields:
    """Decode a protobuf message of numbers and bytes."""
    fields, at = Fields(), 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte, at = data[at], at + 1
            value, shift = value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return value

    while at < len(data):
        tag = number()
        value: int | bytes = number()
        if tag & 7 == 2:
            assert isinstance(value, int)
            at, value = at + value, data[at : at + value]
        fields.append((tag >> 3, value))
    return fields


class Stream:
    """A stream of the go host, as the daemon hands it over."""

    def __init__(self, socket: trio.SocketStream) -> None:
        self.socket, self._rest = socket, b""

    async def exactly(self, count: int) -> bytes | None:
        """Read so many bytes; None at the end."""
        while len(self._rest) < count:
            data = await self.socket.receive_some()
            if not data:
                assert not self._rest, "the other side ended in the middle"
                return None
            self._rest += data
        taken, self._rest = self._rest[:count], self._rest[count:]
        return taken

    async def delimited(self) -> Fields:
        """Read a message behind its length."""
        length = shift = 0
        while True:
            byte = await self.exactly(1)
            assert byte is not None, "the daemon hung up"
            length, shift = length | (byte[0] & 0x7F) << shift, shift + 7
            if byte[0] < 0x80:
                break
        return fields_of(await self.exactly(length) or b"")

    async def send(self, data: bytes) -> None:
        await self.socket.send_all(data)

    async def frame(self) -> bytes | None:
        """Read one frame of our protocols; None at the end."""
        head = await self.exactly(4)
        return None if head is None else await self.exactly(int.from_bytes(head, "big"))


class GoPeer:
    """A running daemon. `peer_id`, `address`: of its host."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._handlers = folder, 0
        self.peer_id, self.address = "", ""

    async def _command(self, kind: int, fields: Fields | None = None) -> tuple[Stream, Fields]:
        stream = Stream(await trio.open_unix_socket(str(self._folder / "control")))
        body: Fields = [(1, 5 if kind == LIST_PEERS else kind)]
        await stream.send(_delimited(body if fields is None else [*body, (_FIELDS[kind], message(fields))]))
        answer = await stream.delimited()
        if dict(answer)[1] != 0:
            await stream.socket.aclose()
            raise RuntimeError(str(answer))
        return stream, answer

    async def _ask(self, kind: int, fields: Fields | None = None) -> Fields:
        stream, answer = await self._command(kind, fields)
        await stream.socket.aclose()
        return answer

    async def identify(self) -> None:
        """Learn the host's peer id, and its address on the loopback."""
        identity = fields_of(bytes(dict(await self._ask(IDENTIFY))[4]))  # type: ignore[arg-type]
        self.peer_id = base58.b58encode(bytes(dict(identity)[1])).decode()  # type: ignore[arg-type]
        binary = next(bytes(value) for number, value in identity if number == 2)  # type: ignore[arg-type]
        assert binary[:6] == b"\x04\x7f\x00\x00\x01\x06", "an address is /ip4/127.0.0.1/tcp/PORT"
        self.address = f"/ip4/127.0.0.1/tcp/{int.from_bytes(binary[6:8], 'big')}/p2p/{self.peer_id}"

    async def dial(self, peer: str, port: int) -> None:
        address = b"\x04\x7f\x00\x00\x01\x06" + port.to_bytes(2, "big")
        await self._ask(CONNECT, [(1, base58.b58decode(peer)), (2, address)])

    async def peers(self) -> list[str]:
        """Return the peer ids of the connected peers."""
        answer = await self._ask(LIST_PEERS)
        named = [fields_of(value) for number, value in answer if number == 6 and isinstance(value, bytes)]
        return [base58.b58encode(bytes(dict(one)[1])).decode() for one in named]  # type: ignore[arg-type]

    async def open(self, peer: str, protocol: str) -> Stream:
        """Open a stream of one protocol to a peer. Raises `RuntimeError`."""
        stream, _ = await self._command(STREAM_OPEN, [(1, base58.b58decode(peer)), (2, protocol.encode())])
        return stream

    @asynccontextmanager
    async def serving(self, protocol: str, serve: Callable[[Stream], Awaitable[None]]) -> AsyncIterator[None]:
        """Let streams of a protocol be served during the `with` block."""
        self._handlers += 1
        path = self._folder / f"handler{self._handlers}"
        listening = trio.socket.socket(trio.socket.AF_UNIX)
        await listening.bind(str(path))
        listening.listen()

        async def served(socket: trio.SocketStream) -> None:
            stream = Stream(socket)
            await stream.delimited()  # StreamInfo
            await serve(stream)
            await socket.aclose()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, served, [trio.SocketListener(listening)])
            address = b"\x90\x03" + varint(len(str(path))) + str(path).encode()
            await self._ask(STREAM_HANDLER, [(1, address), (2, protocol.encode()), (3, 0)])
            yield
            nursery.cancel_scope.cancel()


def _delimited(fields: Fields) -> bytes:
    data = message(fields)
    return varint(len(data)) + data


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[GoPeer]:
    """Run the daemon with its host on the loopback. `folder`: for its sockets; its path is short."""
    command = [
        str(P2PD), "-listen", f"/unix{folder}/control", "-hostAddrs", "/ip4/127.0.0.1/tcp/0", "-q",
        "-dht=false", "-relay=false", "-pubsub=false",
    ]  # fmt: skip
    process = await trio.lowlevel.open_process(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        peer = GoPeer(folder)
        with trio.fail_after(30):
            while not (folder / "control").exists():  # noqa: ASYNC110
                await trio.sleep(0.02)
        await peer.identify()
        yield peer
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
