"""The HTTPS client over real TLS on loopback: pinning, requests, long polls, and fetches that survive breaks."""

import asyncio
import contextlib
import struct
import threading

import pytest

from echo2.p2p.errors import Exhausted, PeerFault, Unreachable
from echo2.p2p.https import certificate, routes
from echo2.p2p.https.client import HttpsClient
from echo2.p2p.https.client_limits import HttpsLimits
from echo2.p2p.swarm import messages
from echo2.p2p.swarm.payload_file import PartialPayload, PayloadFile
from tests.support.https import (
    LOOPBACK,
    NOW,
    Shown,
    address_of,
    client_of,
    echo,
    running,
    served,
    shown,
    until,
)
from tests.support.peers import IP6, payload_file

MB = 1_000_000


@pytest.mark.parametrize("listen", [LOOPBACK, IP6])
async def test_a_request_is_answered_over_ipv4_and_ipv6(listen):
    async with served(listen, echo=echo) as server, client_of(server) as client:
        assert await client.request("coordinator", "echo", b"hello", timeout=60) == b"https:hello"
        assert (await client.peers(), await client.routes()) == (["coordinator"], {"coordinator": "https"})


async def test_another_key_is_refused_with_a_sentence_before_a_byte_is_sent(monkeypatch):
    received = []

    async def listen(peer, data):
        received.append(data)
        return b""

    async with served(echo=listen, identity=shown("stranger")) as server:
        client = HttpsClient("node", shown().pin)
        async with running(client):
            with pytest.raises(PeerFault, match="HTTPS key mismatch"):
                await client.dial([await address_of(server)])
            assert await client.peers() == []
        assert server.https.listener._server.requests_count == 0
    assert received == []


async def test_a_key_that_changes_while_connected_is_refused_at_the_next_connection():
    async with served(echo=echo) as server, client_of(server) as client:
        address = await address_of(server)
        async with served(echo=echo, identity=shown("stranger")) as impostor:
            client._origin = client._origin.replace(address.split("/")[4], (await address_of(impostor)).split("/")[4])
            with pytest.raises(PeerFault, match="HTTPS key mismatch"):
                await client.request("coordinator", "echo", b"", timeout=60)


async def test_a_renewed_certificate_under_the_same_key_is_the_same_coordinator(tmp_path):
    old = shown()
    pem = tmp_path / "new.crt"
    pem.write_bytes(certificate.certificate(old.key, "coordinator", NOW + certificate.CERTIFICATE_LIFE))
    async with served(echo=echo, identity=Shown(old.key, pem, old.pin)) as server, client_of(server) as client:
        assert await client.request("coordinator", "echo", b"1", timeout=60) == b"https:1"


async def test_an_address_with_another_peer_id_is_not_that_coordinator():
    async with served() as server, client_of(server) as client:
        other = (await address_of(server)).replace("/p2p/coordinator", "/p2p/someone")
        with pytest.raises(Unreachable, match="is not the coordinator someone"):
            await client.dial([other])


async def test_an_address_without_a_server_is_unreachable():
    client = HttpsClient("node", shown().pin)
    async with running(client):
        with pytest.raises(Unreachable, match=r"https://127\.0\.0\.1:1"):
            await client.dial(["/ip4/127.0.0.1/tcp/1/https/p2p/coordinator"])
        with pytest.raises(Unreachable, match="no HTTPS address"):
            await client.dial(["/ip4/127.0.0.1/tcp/1/p2p/coordinator"])
        with pytest.raises(Unreachable, match="not connected"):
            await client.request("coordinator", "echo", b"", timeout=1)


async def test_a_slow_answer_times_out_and_the_coordinator_can_be_dialled_again():
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


async def test_a_client_above_its_rate_is_served_later_and_stays_connected():
    async with served(echo=echo, limits=HttpsLimits(rate=20.0, burst=3)) as server, client_of(server) as client:
        for _ in range(5):
            assert await client.request("coordinator", "echo", b"", timeout=60) == b"https:"
        assert await client.peers() == ["coordinator"]


async def test_a_published_message_arrives_at_once_and_once_and_a_late_subscriber_gets_the_last():
    received = asyncio.Queue()

    async def on_message(peer, data):
        received.put_nowait((peer, data))
        return True

    async with served() as server:
        client = HttpsClient("node", shown().pin)
        client.subscribe("echo2/abc/head", on_message)
        await server.publish("echo2/abc/head", b"one")
        async with running(client), asyncio.timeout(60):
            await client.dial([await address_of(server)])
            assert await received.get() == ("coordinator", b"one")
            await server.publish("echo2/other/head", b"not for us")
            await server.publish("echo2/abc/head", b"one")
            await server.publish("echo2/abc/head", b"two")
            assert await received.get() == ("coordinator", b"two")
        assert received.empty()


async def test_a_disconnected_client_sends_no_requests():
    async with served() as server, client_of(server) as client:
        await client.disconnect()
        assert (await client.peers(), await client.routes()) == ([], {})
        with pytest.raises(Unreachable):
            await client.request("coordinator", "echo", b"", timeout=1)


class Liar(PayloadFile):
    """A payload file that returns false bytes with true proofs, the first `lies` times."""

    lies = 1

    def read(self, index):
        data, proof = super().read(index)
        if self.lies:
            self.lies -= 1
            data = bytes([data[0] ^ 1]) + data[1:]
        return data, proof


@pytest.mark.parametrize("length", [0, 1, 16 << 10, 3 * MB, 9 * MB + 7])
@pytest.mark.slow_for("9000007")
async def test_a_payload_is_fetched_whole(length, tmp_path):
    manifest = payload_file(tmp_path / "a", length)
    async with served() as server, client_of(server) as client:
        await server.share(manifest, tmp_path / "a")
        await client.fetch(manifest, tmp_path / "b")
        assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()
        assert (await client.traffic()).received_by_peer.get("coordinator", 0) == length
        assert (await server.traffic()).sent == length
        await client.fetch(manifest, tmp_path / "b")  # there already
        assert (await client.traffic()).received == length


async def test_a_fetch_waits_for_a_free_file_descriptor(tmp_path, monkeypatch):
    manifest = payload_file(tmp_path / "a", MB)
    shortages = [2]

    def opened(manifest, path):
        if shortages[0]:
            shortages[0] -= 1
            raise Exhausted(f"opening {path}")
        return PartialPayload(manifest, path)

    monkeypatch.setattr("echo2.p2p.https.client.PartialPayload", opened)
    monkeypatch.setattr("echo2.p2p.swarm.open_files.RETRY_INTERVAL", 0.01)
    async with served() as server, client_of(server) as client:
        await server.share(manifest, tmp_path / "a")
        await client.fetch(manifest, tmp_path / "b")
    assert shortages == [0]
    assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()


async def test_a_false_chunk_is_not_stored_and_is_fetched_again(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("echo2.p2p.https.server.PayloadFile", Liar)
    manifest = payload_file(tmp_path / "a", 3 * MB)
    async with served() as server, client_of(server) as client:
        await server.share(manifest, tmp_path / "a")
        await client.fetch(manifest, tmp_path / "b")
        assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()
    assert "does not lead to the chunk root" in caplog.text


@pytest.mark.parametrize(
    "frames",
    {
        "an endless frame": struct.pack(">I", 1 << 31),
        "no message": routes.LENGTH.pack(3) + b"abc",
        "another chunk": routes.frame_message(messages.Chunk(5, (), b"x")),
        "an early end": routes.frame_message(messages.NotAvailable(1))[:-1],
    }.values(),
)
async def test_malformed_frames_are_survived_and_not_stored(frames, tmp_path, monkeypatch):
    manifest = payload_file(tmp_path / "a", 16 << 10)
    malformed = [frames]
    framed = routes.frame_message
    monkeypatch.setattr(routes, "frame_message", lambda message: malformed.pop() if malformed else framed(message))
    async with served() as server, client_of(server) as client:
        await server.share(manifest, tmp_path / "a")
        await client.fetch(manifest, tmp_path / "b")
        assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()
        assert not malformed


@pytest.mark.slow
async def test_a_fetch_continues_with_the_missing_chunks_after_the_server_was_away(tmp_path, monkeypatch):
    manifest = payload_file(tmp_path / "a", 8 * MB)
    away, half = threading.Event(), 128 * manifest.chunk_size

    class Half(PayloadFile):
        """A payload file of which only the first half can be read until the server is away."""

        def read(self, index):
            return super().read(index) if index < 128 or away.is_set() else away.wait(60) and None

    monkeypatch.setattr("echo2.p2p.https.server.PayloadFile", Half)
    async with contextlib.AsyncExitStack() as stack:
        first = contextlib.AsyncExitStack()
        server = await first.enter_async_context(served())
        port = (await address_of(server)).split("/")[4]
        client = await stack.enter_async_context(client_of(server))
        await server.share(manifest, tmp_path / "a")
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


async def test_a_fetch_of_an_earlier_process_is_resumed_from_the_disk(tmp_path):
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
