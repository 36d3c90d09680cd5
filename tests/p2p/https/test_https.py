"""Requests, news and payloads over HTTPS on the loopback, with real TLS: what works, and what is refused and how."""

import asyncio
import contextlib
import json
import ssl
import struct
import threading
import time

import aiohttp
import pytest

from p2p.errors import Malformed, Unreachable, WrongIdentity
from p2p.https import certificate, routes
from p2p.https.client import HttpsClient
from p2p.https.client_limits import ClientLimiter, HttpsLimits, client_key
from p2p.limits.bandwidth import BURST
from p2p.limits.token_bucket import KEPT
from p2p.memory.transport import MemoryNetwork
from p2p.network import Manifest
from p2p.peer.peer import Peer
from p2p.swarm import messages
from p2p.swarm.open_files import FILES
from p2p.swarm.payload_file import PayloadFile
from tests.support import paths
from tests.support.clock import run_fake
from tests.support.https import LOOPBACK, NOW, Shown, address_of, client_of, running, served, server_beside, shown
from tests.support.peers import IP6, payload_file

VECTORS = json.loads((paths.VECTORS / "https.json").read_text())
MB = 1_000_000


async def echo(peer: str, data: bytes) -> bytes:
    return peer.partition("/")[0].encode() + b":" + data


async def fail(peer: str, data: bytes) -> bytes:
    raise RuntimeError("a secret of this machine")


@contextlib.asynccontextmanager
async def raw(server):
    """A connection with TLS and nothing on it yet."""
    port = int((await address_of(server)).split("/")[4])
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def until(condition) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what is waited for raises no event
            await asyncio.sleep(0)


async def said(server, request: bytes) -> bytes:
    """All that comes back for these bytes, until the other side hangs up."""
    async with raw(server) as (reader, writer):
        writer.write(request)
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(60):
                return await reader.read()
        return b""


# --- the wire


def test_the_wire_is_what_the_vectors_say():
    one = VECTORS["chunks_path"]
    assert routes.chunks_path(bytes.fromhex(one["payload"]), one["first"], one["last"]) == one["path"]
    assert routes.read_chunks_path(one["path"]) == (bytes.fromhex(one["payload"]), one["first"], one["last"])
    assert routes.etag(bytes.fromhex(VECTORS["etag"]["data"])) == VECTORS["etag"]["etag"]
    chunk, gone = VECTORS["frames"]
    proof = tuple(bytes.fromhex(one) for one in chunk["proof"])
    chunk_frame = messages.Chunk(chunk["index"], proof, bytes.fromhex(chunk["data"]))
    assert routes.framed(chunk_frame).hex() == chunk["frame"]
    assert routes.framed(messages.NotAvailable(gone["index"])).hex() == gone["frame"]


@pytest.mark.parametrize(
    "rest",
    {
        "no hash": "/0-1",
        "a short hash": "abcd/0-1",
        "no hash but a path": "../../etc/passwd/0-1",
        "no span": "ab" * 32,
        "one number": "ab" * 32 + "/3",
        "a negative number": "ab" * 32 + "/-1-3",
        "other digits": "ab" * 32 + "/²-3",
        "backwards": "ab" * 32 + "/3-2",
        "too many": "ab" * 32 + "/0-64",
        "an endless number": "ab" * 32 + "/0-" + "9" * 5000,
    }.values(),
)
def test_a_path_that_names_no_chunks_is_malformed(rest):
    with pytest.raises(Malformed, match="HASH/FIRST-LAST"):
        routes.read_chunks_path(routes.CHUNKS + rest)


# --- who answers


@pytest.mark.parametrize("listen", [LOOPBACK, IP6])
async def test_a_request_is_answered_over_ipv4_and_ipv6(listen):
    async with served(listen, echo=echo) as server, client_of(server) as client:
        assert await client.request("coordinator", "echo", b"hello", timeout=60) == b"https:hello"
        assert (await client.peers(), await client.route("coordinator")) == (["coordinator"], "https")


async def test_another_key_is_refused_with_a_sentence_before_a_byte_is_sent(monkeypatch):
    heard = []

    async def listen(peer, data):
        heard.append(data)
        return b""

    async with served(echo=listen, identity=shown("stranger")) as server:
        client = HttpsClient("node", shown().pin)
        async with running(client):
            with pytest.raises(WrongIdentity, match="HTTPS key mismatch"):
                await client.dial([await address_of(server)])
            assert await client.peers() == []
        assert server.https.listener.requests == 0
    assert heard == []


async def test_a_key_that_changes_while_connected_is_refused_at_the_next_connection():
    async with served(echo=echo) as server, client_of(server) as client:
        address = await address_of(server)
        async with served(echo=echo, identity=shown("stranger")) as impostor:
            client._origin = client._origin.replace(address.split("/")[4], (await address_of(impostor)).split("/")[4])
            with pytest.raises(WrongIdentity):
                await client.request("coordinator", "echo", b"", timeout=60)


async def test_a_renewed_certificate_under_the_same_key_is_the_same_coordinator(tmp_path):
    old = shown()
    pem = tmp_path / "new.crt"
    pem.write_bytes(certificate.certificate(old.key, "coordinator", NOW + certificate.LIFE))
    async with served(echo=echo, identity=Shown(old.key, pem, old.pin)) as server, client_of(server) as client:
        assert await client.request("coordinator", "echo", b"1", timeout=60) == b"https:1"


async def test_an_address_with_another_peer_id_is_not_that_coordinator():
    async with served() as server, client_of(server) as client:
        other = (await address_of(server)).replace("/p2p/coordinator", "/p2p/someone")
        with pytest.raises(Unreachable, match="is not the coordinator someone"):
            await client.dial([other])


async def test_nobody_there_is_unreachable():
    client = HttpsClient("node", shown().pin)
    async with running(client):
        with pytest.raises(Unreachable, match=r"https://127\.0\.0\.1:1"):
            await client.dial(["/ip4/127.0.0.1/tcp/1/https/p2p/coordinator"])
        with pytest.raises(Unreachable, match="no HTTPS address"):
            await client.dial(["/ip4/127.0.0.1/tcp/1/p2p/coordinator"])
        with pytest.raises(Unreachable, match="not connected"):
            await client.request("coordinator", "echo", b"", timeout=1)


# --- requests


async def test_what_goes_wrong_with_a_request_is_said_and_nothing_else():
    async with served(echo=echo, fail=fail) as server, client_of(server) as client:
        with pytest.raises(Malformed, match=r"\(413\): a request may have at most 1000 bytes"):
            await client.request("coordinator", "echo", bytes(1001), timeout=60)
        with pytest.raises(Unreachable, match=r"\(404\): no such method"):
            await client.request("coordinator", "ohce", b"", timeout=60)
        with pytest.raises(Unreachable, match=r"\(500\): the request failed$"):
            await client.request("coordinator", "fail", b"", timeout=60)
        assert await client.request("coordinator", "echo", bytes(1000), timeout=60)


async def test_a_slow_answer_is_given_up_and_the_coordinator_dialled_again():
    started = asyncio.Event()

    async def slow(peer, data):
        started.set()
        await asyncio.Event().wait()

    async with served(slow=slow, echo=echo) as server, client_of(server) as client:
        with pytest.raises(Unreachable, match=r"did not answer slow within 0\.1 s"):
            await client.request("coordinator", "slow", b"", timeout=0.1)
        await started.wait()
        assert await client.peers() == []
        await client.dial([await address_of(server)])
        assert await client.request("coordinator", "echo", b"", timeout=60) == b"https:"


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
        answer = await said(server, request_bytes)
        assert answer.startswith(f"HTTP/1.1 {status} ".encode()) or answer.startswith(f"HTTP/1.0 {status} ".encode())
        assert b"Traceback" not in answer


async def test_a_packed_body_is_not_unpacked():
    async with served(echo=echo) as server:
        head = b"POST /echo2/1/rpc/echo HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nConnection: close\r\n"
        assert (await said(server, head + b"Content-Length: 3\r\n\r\nabc")).endswith(b"https:abc")


# --- slow and many


@pytest.mark.parametrize(
    "drip",
    {
        "nothing at all": b"",
        "half a header": b"POST /echo2/1/rpc/echo HTTP/1.1\r\nHost: x\r\nX-Slow",
        "half a body": b"POST /echo2/1/rpc/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc",
    }.values(),
)
async def test_who_sends_too_slowly_is_cut_off(drip):
    async with served(echo=echo, limits=HttpsLimits(idle=0.2, patience=0.2)) as server:
        assert b"200" not in await said(server, drip)


async def test_a_body_that_drips_is_cut_off_though_each_byte_comes_in_time():
    async with (
        served(echo=echo, limits=HttpsLimits(patience=0.3, slowest=1e6)) as server,
        raw(server) as (reader, writer),
    ):
        writer.write(b"POST /echo2/1/rpc/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
        with pytest.raises(ConnectionError):  # noqa: PT012
            for _ in range(100):
                writer.write(b"a")
                await writer.drain()
                await asyncio.sleep(0.05)
            assert await reader.read() == b""
            raise ConnectionError


async def test_who_reads_too_slowly_is_cut_off_and_others_are_served():
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


async def test_a_handshake_that_never_comes_is_given_up():
    async with served(echo=echo, limits=HttpsLimits(handshake=0.2)) as server:
        port = int((await address_of(server)).split("/")[4])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(60):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()
        assert server.https.listener.connections == 0


async def test_more_connections_than_one_visitor_may_have_are_closed_at_once():
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


async def test_more_requests_than_one_visitor_may_make_are_put_off():
    async with served(echo=echo, limits=HttpsLimits(rate=0.1, burst=3)) as server, client_of(server) as client:
        for _ in range(2):
            await client.request("coordinator", "echo", b"", timeout=60)
        with pytest.raises(Unreachable, match=r"\(429\): too many requests"):
            await client.request("coordinator", "echo", b"", timeout=60)


async def test_a_client_that_asks_too_much_is_served_later_and_keeps_its_line():
    async with served(echo=echo, limits=HttpsLimits(rate=20.0, burst=3)) as server, client_of(server) as client:
        for _ in range(5):
            assert await client.request("coordinator", "echo", b"", timeout=60) == b"https:"
        assert await client.peers() == ["coordinator"]


def test_the_door_counts_by_household_and_forgets():
    door = ClientLimiter(HttpsLimits(connections=3, per_visitor=2, rate=1.0, burst=2.0))
    hosts = ("2001:db8::1", "2001:db8::2", "2001:db8::3", "192.0.2.1", "192.0.2.2")
    refused = [why and why[0] for why in map(door.enter, hosts)]
    assert refused == [None, None, "https-address", None, "https"]
    door.leave("2001:db8::2")
    assert door.enter("192.0.2.2") is None
    assert [door.ask("192.0.2.1", 0.0) for _ in range(3)] == [0.0, 0.0, 1.0]
    assert [door.ask("192.0.2.1", 1.0), door.ask("192.0.2.9", 1.0)] == [0.0, 0.0]
    for number in range(2 * KEPT):
        door.ask(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 2.0)
    assert door.ask("192.0.2.1", 2.0) == 0.0, "it was forgotten, and what is forgotten is full again"
    assert [client_key("::ffff:192.0.2.1"), client_key("fe80::1%eth0")] == ["192.0.2.1", "fe80::/64"]


# --- news


async def test_news_is_heard_at_once_each_once_and_late_comers_hear_the_last():
    heard = asyncio.Queue()

    async def hear(peer, data):
        heard.put_nowait((peer, data))
        return True

    async with served() as server:
        client = HttpsClient("node", shown().pin)
        client.subscribe("echo2/abc/head", hear)
        await server.publish("echo2/abc/head", b"one")
        async with running(client), asyncio.timeout(60):
            await client.dial([await address_of(server)])
            assert await heard.get() == ("coordinator", b"one")
            await server.publish("echo2/other/head", b"not for us")
            await server.publish("echo2/abc/head", b"one")
            await server.publish("echo2/abc/head", b"two")
            assert await heard.get() == ("coordinator", b"two")
        assert heard.empty()


async def test_a_question_for_news_ends_after_a_while_without_any(monkeypatch):
    monkeypatch.setattr(routes, "WAIT", 0.1)
    async with served() as server:
        await server.publish("t", b"one")
        head = b"GET /echo2/1/topic/t HTTP/1.1\r\nHost: x\r\nConnection: close\r\nIf-None-Match: "
        answer = await said(server, head + routes.etag(b"one").encode() + b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 304 ")
        assert (await said(server, head + b'"another"\r\n\r\n')).endswith(b"one")


def test_a_node_that_hears_nothing_for_20_s_gives_up_after_the_answer_came():
    """docs/protocol/https.md gives a node 20 s without a byte: a question for news is answered within them."""
    heard = []

    async def ask() -> None:
        async with served() as server:
            await server.publish("t", b"one")
            known = {"If-None-Match": routes.etag(b"one")}
            port = (await address_of(server)).split("/")[4]
            patience = aiohttp.ClientTimeout(total=None, sock_read=20)
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False), timeout=patience) as session:
                try:
                    async with session.get(f"https://127.0.0.1:{port}/echo2/1/topic/t", headers=known) as answer:
                        heard.append(answer.status)
                except TimeoutError:
                    heard.append("nothing for 20 s")

    run_fake(ask)
    assert heard == [304]


async def test_a_client_that_left_asks_nothing_more():
    async with served() as server, client_of(server) as client:
        await client.disconnect()
        assert (await client.peers(), await client.route("coordinator")) == ([], None)
        with pytest.raises(Unreachable):
            await client.request("coordinator", "echo", b"", timeout=1)


# --- payloads


class Liar(PayloadFile):
    """Sends other bytes with the true proofs, the first `lies` times."""

    lies = 1

    def read(self, index):
        data, proof = super().read(index)
        if self.lies:
            self.lies -= 1
            data = bytes([data[0] ^ 1]) + data[1:]
        return data, proof


@pytest.mark.parametrize("length", [0, 1, 16 << 10, 3 * MB, 9 * MB + 7])
async def test_a_payload_is_fetched_whole(length, tmp_path):
    manifest = payload_file(tmp_path / "a", length)
    async with served() as server, client_of(server) as client:
        await server.share(manifest, tmp_path / "a")
        await client.fetch(manifest, tmp_path / "b")
        assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()
        assert (await client.traffic()).received_by_peer.get("coordinator", 0) == length
        assert (await server.traffic()).sent_by_peer.get("https/127.0.0.1", 0) == length
        await client.fetch(manifest, tmp_path / "b")  # there already
        assert (await client.traffic()).received == length


async def test_a_chunk_that_lies_is_not_stored_and_is_fetched_again(tmp_path, caplog):
    manifest = payload_file(tmp_path / "a", 3 * MB)
    async with served() as server, client_of(server) as client:
        await server.share(manifest, tmp_path / "a")
        server.https._shared[manifest.hash] = Liar.open(manifest, tmp_path / "a")
        await client.fetch(manifest, tmp_path / "b")
        assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()
    assert "does not lead to the chunk root" in caplog.text


@pytest.mark.parametrize(
    "frames",
    {
        "an endless frame": struct.pack(">I", 1 << 31),
        "no message": routes.LENGTH.pack(3) + b"abc",
        "another chunk": routes.framed(messages.Chunk(5, (), b"x")),
        "an early end": routes.framed(messages.NotAvailable(1))[:-1],
    }.values(),
)
async def test_frames_that_are_none_are_put_up_with_and_nothing_is_stored(frames, tmp_path, monkeypatch):
    manifest = payload_file(tmp_path / "a", 16 << 10)
    spoiled = [frames]
    framed = routes.framed
    monkeypatch.setattr(routes, "framed", lambda message: spoiled.pop() if spoiled else framed(message))
    async with served() as server, client_of(server) as client:
        await server.share(manifest, tmp_path / "a")
        await client.fetch(manifest, tmp_path / "b")
        assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()
        assert not spoiled


async def test_a_fetch_goes_on_with_what_is_missing_after_the_server_was_away(tmp_path):
    manifest = payload_file(tmp_path / "a", 8 * MB)
    async with contextlib.AsyncExitStack() as stack:
        first = contextlib.AsyncExitStack()
        server = await first.enter_async_context(served())
        port = (await address_of(server)).split("/")[4]
        client = await stack.enter_async_context(client_of(server))
        await server.share(manifest, tmp_path / "a")
        payload, away, half = server.https._shared[manifest.hash], threading.Event(), 128 * manifest.chunk_size

        def first_half(index: int):
            return PayloadFile.read(payload, index) if index < 128 else away.wait(60) and None

        payload.read = first_half
        fetch = asyncio.create_task(client.fetch(manifest, tmp_path / "b"))
        await until(lambda: client.received.total() >= half)
        away.set()
        await first.aclose()
        async with served(f"/ip4/127.0.0.1/tcp/{port}") as again, asyncio.timeout(60):
            await again.share(manifest, tmp_path / "a")
            await fetch
            sent = (await again.traffic()).sent
        assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()
        assert sent == manifest.length - half


async def test_a_fetch_of_another_life_is_resumed_from_the_disk(tmp_path):
    manifest = payload_file(tmp_path / "a", 8 * MB)
    async with served() as server:
        await server.share(manifest, tmp_path / "a")
        async with client_of(server) as client:
            fetch = asyncio.create_task(client.fetch(manifest, tmp_path / "b"))
            await until(lambda: client.received.total() >= MB)
            fetch.cancel()
            await asyncio.wait([fetch])
        async with client_of(server) as client:
            await client.fetch(manifest, tmp_path / "b")
            assert (await client.traffic()).received <= manifest.length - MB
        assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()


async def test_both_ways_together_keep_to_the_one_limit_of_the_uplink(tmp_path):
    manifest, rate = payload_file(tmp_path / "a", 2 * MB), 4.0 * MB
    memory = MemoryNetwork(0)
    peer, other = Peer(memory.transport("coordinator"), seed=0, uplink=rate), Peer(memory.transport("other"), seed=1)
    server, client = server_beside(peer, uplink=peer), HttpsClient("node", shown().pin)
    async with running(server, client, other):
        await server.share(manifest, tmp_path / "a")
        await client.dial([await address_of(server)])
        await other.dial(["/memory/coordinator/p2p/coordinator"])
        began = time.monotonic()
        await asyncio.gather(client.fetch(manifest, tmp_path / "b"), other.fetch(manifest, tmp_path / "c"))
        assert time.monotonic() - began >= 2 * manifest.length / rate - BURST, "never faster, however quick we are"
        assert (tmp_path / "b").read_bytes() == (tmp_path / "c").read_bytes() == (tmp_path / "a").read_bytes()


async def test_what_is_no_longer_shared_is_given_no_more(tmp_path):
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
        asked = b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        answer = await said(server, asked)
        assert len(answer) < 1024, "each chunk is gone"
        FILES.close((manifest.hash, tmp_path / "a"))  # as when others were read since
        answer = await said(server, asked)
        assert answer.startswith(b"HTTP/1.1 404 ")
    assert "is not the payload" in caplog.text


async def test_chunks_beyond_the_end_are_refused(tmp_path):
    manifest: Manifest = payload_file(tmp_path / "a", MB)
    async with served() as server:
        await server.share(manifest, tmp_path / "a")
        path = routes.chunks_path(manifest.hash, 60, 62).encode()
        answer = await said(server, b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 416 ")
