"""A TCP proxy, as a load balancer or a container's port: `python -m benchmarks.attacks.tcp_proxy TARGET --header 2`.

It listens at a port of the loopback that it prints as JSON. It passes each connection on to TARGET, a port of the
loopback, from 127.0.0.1, and sends a PROXY header of that version first, or none (0).
"""

import argparse
import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

READ_BYTES: Final = 64 << 10
TARGET_HOST: Final = "127.0.0.1"


def header_of(version: int, client: tuple[str, int], proxy: tuple[str, int]) -> bytes:
    """Return the PROXY header of a connection over IPv4; nothing for version 0."""
    if version == 1:
        return f"PROXY TCP4 {client[0]} {proxy[0]} {client[1]} {proxy[1]}\r\n".encode()
    addresses = socket.inet_aton(client[0]) + socket.inet_aton(proxy[0]) + struct.pack("!HH", client[1], proxy[1])
    return b"\r\n\r\n\0\r\nQUIT\n\x21\x11" + struct.pack("!H", len(addresses)) + addresses if version else b""


@asynccontextmanager
async def proxying(target: int, version: int, client: tuple[str, int] | None = None) -> AsyncIterator[int]:
    """Pass connections on during the block; yield the port. `client`: named in each header, in place of the true
    one."""
    open_now = set[asyncio.Task[None]]()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_now.add(task)
        task.add_done_callback(open_now.discard)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            behind, before = await asyncio.open_connection(TARGET_HOST, target)
            peer, own = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
            before.write(header_of(version, client or peer, own))
            await asyncio.gather(_carry(reader, before), _carry(behind, writer))

    server = await asyncio.start_server(connected, TARGET_HOST, 0, backlog=1024)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in open_now:
            task.cancel()
        await asyncio.gather(*open_now, return_exceptions=True)


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        with contextlib.suppress(OSError):
            while data := await reader.read(READ_BYTES):
                writer.write(data)
                await writer.drain()
    finally:
        writer.close()


async def _main(target: int, version: int) -> None:
    async with proxying(target, version) as port:
        print(json.dumps({"port": port}), flush=True)
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", type=int)
    parser.add_argument("--header", type=int, choices=(0, 1, 2), default=0)
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main(options.target, options.header))


if __name__ == "__main__":
    main()
