"""The HTTPS listener over real TLS on loopback: slow, idle and too many connections."""

import asyncio
import contextlib
import ssl

import pytest

from echo2.p2p.errors import Unreachable
from echo2.p2p.https import listener
from echo2.p2p.https.client_limits import HttpsLimits
from echo2.p2p.limits import least_rate
from tests.support.https import (
    address_of,
    client_of,
    echo,
    raw,
    response_to,
    served,
    until,
)

MB = 1_000_000


async def test_a_compressed_body_is_not_decompressed():
    async with served(echo=echo) as server:
        head = b"POST /echo2/1/rpc/echo HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nConnection: close\r\n"
        assert (await response_to(server, head + b"Content-Length: 3\r\n\r\nabc")).endswith(b"https:abc")


@pytest.mark.parametrize(
    "drip",
    {
        "nothing at all": b"",
        "half a header": b"POST /echo2/1/rpc/echo HTTP/1.1\r\nHost: x\r\nX-Slow",
        "half a body": b"POST /echo2/1/rpc/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc",
    }.values(),
)
async def test_a_client_that_sends_too_slowly_is_closed(drip, monkeypatch):
    monkeypatch.setattr(least_rate, "RATE_SECONDS", 0.2)
    async with served(echo=echo, limits=HttpsLimits(idle=0.2, patience=0.2)) as server:
        assert b"200" not in await response_to(server, drip)


async def test_a_body_below_the_least_rate_closes_its_connection(monkeypatch):
    monkeypatch.setattr(least_rate, "RATE_SECONDS", 0.3)
    async with served(echo=echo) as server, raw(server) as (reader, writer):
        writer.write(b"POST /echo2/1/rpc/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
        with pytest.raises(ConnectionError):  # noqa: PT012
            for _ in range(100):
                writer.write(b"a")
                await writer.drain()
                await asyncio.sleep(0.05)
            assert await reader.read() == b""
            raise ConnectionError


async def test_the_party_with_most_unfinished_bytes_of_bodies_is_closed_for_another(monkeypatch):
    monkeypatch.setattr(listener, "STRANGERS_UNFINISHED_HTTPS", 100_000)
    async with served(echo=echo) as server, raw(server) as (reader, writer), client_of(server) as client:
        server.peer.handlers.serve("echo", echo, limit=MB)
        writer.write(b"POST /echo2/1/rpc/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 95000\r\n\r\n" + bytes(90_000))
        async with asyncio.timeout(10):
            while server.https.listener._unfinished.total < 90_000:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            answer = await client.request("coordinator", "echo", bytes(60_000), timeout=10)
            assert answer == b"https:" + bytes(60_000)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        assert server.https.listener._unfinished.total == 0


async def test_a_client_that_reads_too_slowly_is_closed_and_others_are_served():
    async def much(peer, data):
        return bytes(40 * MB)

    limits = HttpsLimits(patience=2.0)
    async with (
        served(much=much, echo=echo, limits=limits) as server,
        client_of(server) as client,
        raw(server) as (_, writer),
        asyncio.timeout(60),
    ):
        writer.write(b"POST /echo2/1/rpc/much HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        writer.transport.pause_reading()
        while server.https.listener.connections > 1:
            assert await client.request("coordinator", "echo", b"", timeout=60) == b"https:"
            await asyncio.sleep(0.02)


async def test_a_connection_without_a_handshake_is_closed():
    async with served(echo=echo, limits=HttpsLimits(handshake=0.2)) as server:
        port = int((await address_of(server)).split("/")[4])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(60):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()
        assert server.https.listener.connections == 0


async def test_connections_beyond_the_limit_per_client_are_closed_at_once():
    async with served(echo=echo, limits=HttpsLimits(per_visitor=2)) as server:
        async with raw(server) as one, raw(server):
            with pytest.raises((ConnectionError, ssl.SSLError)):
                async with raw(server):
                    pass
            one[1].write(b"GET /echo2/1/peer HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert (await one[0].read()).endswith(b"coordinator")
        await until(lambda: server.https.listener.connections == 0)
        async with raw(server):
            pass


async def test_requests_above_the_rate_of_a_client_are_refused():
    async with served(echo=echo, limits=HttpsLimits(rate=0.1, burst=3)) as server, client_of(server) as client:
        for _ in range(2):
            await client.request("coordinator", "echo", b"", timeout=60)
        with pytest.raises(Unreachable, match=r"\(429\): too many requests"):
            await client.request("coordinator", "echo", b"", timeout=60)
