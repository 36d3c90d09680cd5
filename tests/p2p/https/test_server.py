"""The HTTPS server over real TLS on loopback: statuses of errors, long polls, and the payloads that it serves."""

import asyncio

import aiohttp
import pytest

from echo2.p2p.errors import Malformed, Unreachable
from echo2.p2p.https import routes
from echo2.p2p.payload_manifest import Manifest
from echo2.p2p.swarm.open_files import FILES
from tests.support.clock import run_fake
from tests.support.https import (
    address_of,
    client_of,
    echo,
    response_to,
    served,
)
from tests.support.peers import payload_file

MB = 1_000_000


async def fail(peer: str, data: bytes) -> bytes:
    raise RuntimeError("a secret of this machine")


async def test_an_error_answer_states_the_reason_and_leaks_nothing_else():
    async with served(echo=echo, fail=fail) as server, client_of(server) as client:
        with pytest.raises(Malformed, match=r"\(413\): a request may have at most 1000 bytes"):
            await client.request("coordinator", "echo", bytes(1001), timeout=60)
        with pytest.raises(Unreachable, match=r"\(404\): no such method"):
            await client.request("coordinator", "ohce", b"", timeout=60)
        with pytest.raises(Unreachable, match=r"\(500\): the request failed$"):
            await client.request("coordinator", "fail", b"", timeout=60)
        assert await client.request("coordinator", "echo", bytes(1000), timeout=60)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    {
        "an oversize body is refused before it is read": (
            b"POST /echo2/1/rpc/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n", 413),
        "a body of unknown length": (
            b"POST /echo2/1/rpc/echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"0\r\n\r\n", 411),
        "the root shows nothing": (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 404),
        "no folder is shown": (
            b"GET /echo2/1/chunks/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 400),
        "no file is shown": (
            b"GET /../../../etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 404),
        "another verb": (b"DELETE /echo2/1/peer HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 404),
        "a payload that is not shared": (
            b"GET /echo2/1/chunks/" + b"ab" * 32 + b"/0-0 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 404),
        "an endless header": (b"GET / HTTP/1.1\r\nX: " + b"x" * 20000 + b"\r\n\r\n", 400),
        "no HTTP": (b"\x00\x01\x02\r\n\r\n", 400),
    }.values(),
)  # fmt: skip
async def test_a_bad_request_gets_its_status_and_ends(request_bytes, status):
    async with served(echo=echo) as server:
        answer = await response_to(server, request_bytes)
        assert answer.startswith(f"HTTP/1.1 {status} ".encode()) or answer.startswith(f"HTTP/1.0 {status} ".encode())
        assert b"Traceback" not in answer


async def test_a_long_poll_without_a_new_message_ends_with_status_304(monkeypatch):
    monkeypatch.setattr(routes, "LONG_POLL_SECONDS", 0.1)
    async with served() as server:
        await server.publish("t", b"one")
        head = b"GET /echo2/1/topic/t HTTP/1.1\r\nHost: x\r\nConnection: close\r\nIf-None-Match: "
        answer = await response_to(server, head + routes.etag(b"one").encode() + b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 304 ")
        assert (await response_to(server, head + b'"another"\r\n\r\n')).endswith(b"one")


def test_a_long_poll_is_answered_within_the_20_s_of_a_nodes_patience():
    """docs/protocol/https.md gives a node 20 s without a byte: a long poll is answered within them."""
    statuses = []

    async def poll() -> None:
        async with served() as server:
            await server.publish("t", b"one")
            known = {"If-None-Match": routes.etag(b"one")}
            port = (await address_of(server)).split("/")[4]
            patience = aiohttp.ClientTimeout(total=None, sock_read=20)
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False), timeout=patience) as session:
                try:
                    async with session.get(f"https://127.0.0.1:{port}/echo2/1/topic/t", headers=known) as answer:
                        statuses.append(answer.status)
                except TimeoutError:
                    statuses.append("nothing for 20 s")

    run_fake(poll)
    assert statuses == [304]


async def test_an_unshared_payload_is_no_longer_served(tmp_path):
    manifest = payload_file(tmp_path / "a", MB)
    async with served() as server, client_of(server) as client:
        await server.share(manifest, tmp_path / "a")
        await client.fetch(manifest, tmp_path / "b")
        await server.unshare(manifest.hash)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await client.fetch(manifest, tmp_path / "c")
        assert not (tmp_path / "c").exists()


async def test_a_shared_file_that_changed_on_disk_is_not_given_out(tmp_path, caplog):
    manifest = payload_file(tmp_path / "a", MB)
    async with served() as server:
        await server.share(manifest, tmp_path / "a")
        (tmp_path / "a").write_bytes(bytes(MB))
        path = routes.chunks_path(manifest.hash, 0, 1).encode()
        request = b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        answer = await response_to(server, request)
        assert len(answer) < 1024, "each chunk is gone"
        FILES.close((manifest.hash, tmp_path / "a"))  # as when others were read since
        answer = await response_to(server, request)
        assert answer.startswith(b"HTTP/1.1 404 ")
    assert "is not the payload" in caplog.text


async def test_chunks_beyond_the_end_are_refused(tmp_path):
    manifest: Manifest = payload_file(tmp_path / "a", MB)
    async with served() as server:
        await server.share(manifest, tmp_path / "a")
        path = routes.chunks_path(manifest.hash, 60, 62).encode()
        answer = await response_to(server, b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 416 ")
