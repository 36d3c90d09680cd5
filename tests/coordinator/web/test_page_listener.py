"""The page's sockets under limits: oversized, incomplete and idle connections."""

import asyncio
import socket

from aiohttp import ClientSession, TCPConnector

from echo2.coordinator.web.site import Site


async def sent(port: int, data: bytes) -> bytes:
    """Send bytes and return the answer up to the end of the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        async with asyncio.timeout(60):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_an_oversized_head_is_cut(site: Site) -> None:
    assert await sent(site.port, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X-Long: x\r\n" * 1000) == b""


async def test_a_request_with_a_body_is_refused_and_the_connection_ends(site: Site) -> None:
    answer = await sent(site.port, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\nxxx")
    assert answer.startswith(b"HTTP/1.1 400")


async def test_an_incomplete_head_is_cut(site: Site) -> None:
    assert await sent(site.port, b"GET / HTTP/1.1\r\n") == b""


async def test_100_idle_connections_do_not_block_other_clients(site: Site) -> None:
    idle = [socket.create_connection(("127.0.0.1", site.port)) for _ in range(100)]
    try:
        connector = TCPConnector(force_close=True)
        async with ClientSession(site.url, connector=connector) as session:
            for _ in range(5):
                async with session.get("/api/v1/run") as answer:
                    assert answer.status == 200
    finally:
        for one in idle:
            one.close()
