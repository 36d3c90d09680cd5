"""The page's sockets under limits: oversized, incomplete and idle connections."""

import asyncio
import socket

import pytest
from aiohttp import ClientSession, TCPConnector, web

from echo2.coordinator.web.page_listener import WebLimits, party_of
from echo2.coordinator.web.site import Site, serve_web
from echo2.p2p.limits.party import Parties


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


async def test_a_request_that_is_no_http_is_not_logged_and_a_fault_of_the_page_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(request: web.Request) -> web.Response:
        raise ZeroDivisionError("of the page")

    async def drop(request: web.Request) -> web.Response:
        raise ConnectionResetError("the client receives too slowly")

    app = web.Application()
    app.router.add_get("/slow", drop)
    app.router.add_get("/", fail)
    site = await serve_web(app, "127.0.0.1", 0)
    for line in (b"Content-Length: -1", b"Transfer-Encoding : chunked", b"\0", b"Host: b"):
        answer = await sent(site.port, b"GET / HTTP/1.1\r\nHost: a\r\n" + line + b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.0 400")
    await sent(site.port, b"GET /slow HTTP/1.0\r\n\r\n")
    assert not caplog.records
    assert (await sent(site.port, b"GET / HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.0 500")
    assert "of the page" in caplog.text
    await site.stop()


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


HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
HEADER = b"PROXY TCP4 8.8.8.8 192.0.2.7 5000 80\r\n"


async def parties_seen(proxies: list[str], *requests: bytes) -> tuple[list[str], dict[str, int]]:
    """Return the parties of these requests as handlers see them, and the refusals."""
    seen: list[str] = []

    async def note(request: web.Request) -> web.Response:
        seen.append(party_of(request))
        return web.Response()

    app = web.Application()
    app.router.add_get("/healthz", note)
    site = await serve_web(app, "127.0.0.1", 0, WebLimits(parties=Parties(proxies=proxies), idle=0.2))
    for request in requests:
        await sent(site.port, request)
    await site.stop()
    return seen, site.count_refusals()


FORWARDED = HEAD + b"X-Forwarded-For: 1.2.3.4, 9.9.9.9\r\n\r\n"
PLAIN = HEAD + b"\r\n"


async def test_of_a_trusted_proxy_header_and_x_forwarded_for_name_the_client() -> None:
    seen, refused = await parties_seen(["127.0.0.1"], HEADER + PLAIN, FORWARDED, HEADER + FORWARDED, PLAIN)
    assert (seen, refused) == (["8.8.8.0/24", "9.9.9.0/24", "8.8.8.0/24", "127.0.0.1"], {})


async def test_of_others_a_header_ends_the_connection_and_x_forwarded_for_is_not_read() -> None:
    seen, refused = await parties_seen([], HEADER + PLAIN, FORWARDED, PLAIN)
    assert (seen, refused) == (["127.0.0.1", "127.0.0.1"], {"proxy": 1})


async def test_a_malformed_header_of_a_trusted_proxy_ends_the_connection_and_half_of_one_is_cut() -> None:
    seen, refused = await parties_seen(["127.0.0.1"], b"PROXY TCP4 nowhere\r\n" + PLAIN, HEADER[:20], PLAIN)
    assert (seen, refused) == (["127.0.0.1"], {"proxy": 1})
