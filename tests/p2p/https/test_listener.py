"""The HTTPS listener over real TLS on loopback: slow, idle and too many connections."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import cast

import pytest

from benchmarks.attacks.tcp_proxy import proxying
from echo2.p2p.envelope import seal
from echo2.p2p.errors import Unreachable
from echo2.p2p.https import listener
from echo2.p2p.https.client_limits import HttpsLimits
from echo2.p2p.https.combined_network import PeerAndHttps
from echo2.p2p.identity import generate_key, peer_id, public_bytes
from echo2.p2p.limits import least_rate
from echo2.p2p.limits.party import PRIVATE, Parties
from echo2.p2p.network import AnyPeer
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
        while len(server.https.listener.clients) > 1:
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
        assert len(server.https.listener.clients) == 0


def loopback_is_foreign(ip: str) -> str:
    return ip.rpartition(".")[0] + ".0/24"


async def test_connections_beyond_the_limit_per_client_are_closed_at_once():
    async with served(echo=echo, limits=HttpsLimits(per_visitor=2, parties=Parties(loopback_is_foreign))) as server:
        async with raw(server) as one, raw(server):
            with pytest.raises((ConnectionError, ssl.SSLError)):
                async with raw(server):
                    pass
            one[1].write(b"GET /echo2/1/peer HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert (await one[0].read()).endswith(b"coordinator")
        await until(lambda: len(server.https.listener.clients) == 0)
        async with raw(server):
            pass


async def test_requests_above_the_rate_of_a_client_are_refused():
    async with served(echo=echo, limits=HttpsLimits(rate=0.1, burst=3)) as server, client_of(server) as client:
        for _ in range(2):
            await client.request("coordinator", "echo", b"", timeout=60)
        with pytest.raises(Unreachable, match=r"\(429\): too many requests"):
            await client.request("coordinator", "echo", b"", timeout=60)


CLIENT = ("8.8.8.8", 5000)


@contextlib.asynccontextmanager
async def proxied(server: PeerAndHttps, version: int) -> AsyncIterator[PeerAndHttps]:
    """Run a TCP proxy before a server, which names `CLIENT`; yield what its clients dial."""
    async with proxying(int((await address_of(server)).split("/")[4]), version, CLIENT) as port:
        yield cast("PeerAndHttps", Proxied(server.peer, port))


@dataclass
class Proxied:
    peer: AnyPeer
    port: int

    async def addresses(self) -> list[str]:
        return [f"/ip4/127.0.0.1/tcp/{self.port}/https"]


async def name(peer: str, data: bytes) -> bytes:
    return peer.encode()


@pytest.mark.parametrize("version", [1, 2])
async def test_behind_a_trusted_proxy_a_client_is_who_the_header_says(version: int) -> None:
    limits = HttpsLimits(parties=Parties(proxies=["127.0.0.1"]))
    async with served(name=name, limits=limits) as server, proxied(server, version) as at, client_of(at) as client:
        assert await client.request("coordinator", "name", b"", timeout=60) == b"https/8.8.8.8"
        assert server.https.origin("https/8.8.8.8").party == "8.8.8.0/24"


async def test_a_trusted_proxy_that_sends_no_header_and_a_header_from_elsewhere_are_refused_and_counted() -> None:
    for proxies, version in ((["127.0.0.1"], 0), ([], 1), ([], 2)):
        limits = HttpsLimits(parties=Parties(proxies=proxies))
        async with served(name=name, limits=limits) as server, proxied(server, version) as at:
            with pytest.raises((ConnectionError, ssl.SSLError)):
                async with raw(at):
                    pass
            assert server.https.listener.refusals.counts() == {"proxy": 1}
            await until(lambda: len(server.https.listener.clients) == 0)


async def test_the_connection_of_a_key_with_accepted_work_is_a_party_of_its_own_at_a_private_address() -> None:
    run, alice, eve = bytes(32), generate_key(), generate_key()
    parties, peer = Parties(private_is_one=True, proxies=["10.0.0.7"]), peer_id(public_bytes(alice))
    parties.keep([peer])
    seen: list[str] = []

    async def note(peer: str, data: bytes) -> bytes:
        seen.append(server.https.origin(peer).party)
        return b""

    async with served(note=note, limits=HttpsLimits(parties=parties), run=run) as server:
        for sealed in (
            seal("peer", run, b"a document that others hold", alice),
            seal("request", bytes(31) + b"x", b"of another run", alice),
            seal("request", run, b"", eve),
            seal("request", run, b"", alice),
        ):
            async with client_of(server) as client:
                await client.request("coordinator", "note", sealed, timeout=60)
        await until(lambda: not server.https.listener.keys)
    assert seen == [PRIVATE, PRIVATE, PRIVATE, peer]
