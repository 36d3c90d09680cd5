"""A TCP proxy on loopback that delays all bytes, as a long line does: nothing is lost, and the rate is not limited."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

PIECE = 1 << 16


async def _carry(source: asyncio.StreamReader, target: asyncio.StreamWriter, seconds: float) -> None:
    """Carry bytes one way, each piece `seconds` after it came."""
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def read() -> None:
        while data := await source.read(PIECE):
            pieces.put_nowait((loop.time() + seconds, data))
        pieces.put_nowait((loop.time() + seconds, b""))

    reading = asyncio.ensure_future(read())
    try:
        while True:
            due, data = await pieces.get()
            await asyncio.sleep(due - loop.time())
            if not data:
                return
            target.write(data)
            await target.drain()
    except OSError:
        return
    finally:
        reading.cancel()
        target.close()


@asynccontextmanager
async def delay_proxy(port: int, seconds: float) -> AsyncIterator[int]:
    """Yield the port of a proxy to `port` that adds `seconds` to each way."""
    carriers: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:  # the far end does not listen yet
            writer.close()
            return
        for source, target in ((reader, back), (there, writer)):
            carriers.add(asyncio.ensure_future(_carry(source, target, seconds)))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for one in carriers:
            one.cancel()
        await asyncio.gather(*carriers, return_exceptions=True)
