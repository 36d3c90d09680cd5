"""The transport over real libp2p on loopback: inputs and conditions under which py-libp2p fails and we must not."""

import asyncio
import socket

import pytest

from echo2._libp2p.peer.id import ID
from echo2.p2p.errors import LocalNetworkFault, Unreachable
from echo2.p2p.identity import generate_key
from echo2.p2p.libp2p import transport as libp2p
from echo2.p2p.libp2p.threaded_network import ThreadedPeer
from echo2.p2p.peer import rpc
from tests.support.libp2p_peers import LOOPBACK, MB, echo, new_peer, on_trio, running
from tests.support.peers import IP6, payload_file


async def test_two_peers_answer_each_other():
    a, b = new_peer(), new_peer()
    for peer in (a, b):
        peer.serve("echo", echo, limit=100)
    async with running(a, b):
        assert await a.request(b.peer_id, "echo", b"x", timeout=60) == a.peer_id.encode() + b":x"
        assert await b.request(a.peer_id, "echo", b"y", timeout=60) == b.peer_id.encode() + b":y"
        assert await a.peers() == [b.peer_id]


async def test_a_large_answer_arrives_whole():
    async def large(peer: str, request: bytes) -> bytes:
        return bytes(range(256)) * (8 << 12)

    a, b = new_peer(), new_peer()
    a.serve("large", large, limit=100)
    async with running(a, b):
        assert await b.request(a.peer_id, "large", b"", timeout=60) == bytes(range(256)) * (8 << 12)


@pytest.mark.parametrize("listen", [IP6])
async def test_addresses_over_ip6_can_be_dialled(listen):
    a, b = new_peer(listen=listen), new_peer()
    a.serve("echo", echo, limit=100)
    async with running(a, b):
        assert "/ip6/::1/" in (await a.addresses())[0]
        assert await b.request(a.peer_id, "echo", b"x", timeout=60)


@pytest.mark.parametrize("kind", ["dns", "dns4"])
async def test_a_name_is_resolved_as_the_system_does(kind: str):
    """Upstream asks DNS servers alone: a name of /etc/hosts was not known."""
    a, b = new_peer(), new_peer()
    a.serve("echo", echo, limit=100)
    async with running(a), running(b):
        port = (await a.addresses())[0].split("/")[4]
        await b.dial([f"/{kind}/localhost/tcp/{port}/p2p/{a.peer_id}"])
        assert await b.request(a.peer_id, "echo", b"x", timeout=60)
        with pytest.raises(Unreachable, match=r"this machine knows no address of nowhere\.invalid"):
            await b.dial([f"/{kind}/nowhere.invalid/tcp/{port}/p2p/{new_peer().peer_id}"])


async def test_an_address_of_a_name_that_answers_nothing_leaves_time_for_the_next(monkeypatch: pytest.MonkeyPatch):
    """With an IPv6 route that leads nowhere the first address of a name took all of the time."""
    monkeypatch.setattr(libp2p, "DIAL_TIMEOUT", 6.0)
    a, b = new_peer(), new_peer()
    async with running(a), running(b):
        [port] = {one.split("/")[4] for one in await a.addresses()}

        async def both(addresses):
            silent = silence.getsockname()[1]
            return [f"/ip4/127.0.0.1/tcp/{each}/p2p/{a.peer_id}" for each in ("x", silent, port)]

        monkeypatch.setattr(libp2p, "without_names", both)
        with socket.create_server(("127.0.0.1", 0)) as silence:
            assert await b.dial([f"/dns4/any.example/tcp/{port}/p2p/{a.peer_id}"]) == a.peer_id


async def test_only_noise_is_offered():
    a = new_peer()
    async with running(a):
        upgrader = await on_trio(a, lambda transport: _soon(transport.host.get_network().upgrader))
        assert list(upgrader.security_multistream.transports) == ["/noise"]


async def _soon(value):
    return value


async def test_a_stream_that_is_reset_does_not_end_the_host():
    a, b = new_peer(), new_peer()
    a.serve("echo", echo, limit=100)
    async with running(a, b):

        async def open_and_reset(transport) -> None:
            for _ in range(20):
                stream = await transport.open(a.peer_id, rpc.PROTOCOL)
                await stream.send(b"echo")
                await stream.reset()

        await on_trio(b, open_and_reset)
        assert await b.request(a.peer_id, "echo", b"x", timeout=60)


async def test_an_exception_in_a_handler_does_not_end_the_host():
    async def crash(peer: str, request: bytes) -> bytes:
        raise RuntimeError("a bug")

    a, b = new_peer(), new_peer()
    a.serve("crash", crash, limit=100)
    a.serve("echo", echo, limit=100)
    async with running(a, b):
        with pytest.raises(Unreachable):
            await b.request(a.peer_id, "crash", b"", timeout=60)
        assert await b.request(a.peer_id, "echo", b"x", timeout=60)


@pytest.mark.slow
async def test_a_payload_reaches_a_peer_through_another_one(tmp_path):
    manifest = payload_file(tmp_path / "a", 8 * MB)
    a, b, c = new_peer(), new_peer(), new_peer()
    async with running(a, b, c, chained=True):
        await a.share(manifest, tmp_path / "a")
        await asyncio.gather(b.fetch(manifest, tmp_path / "b", fallback=a.peer_id), c.fetch(manifest, tmp_path / "c"))
        assert (await c.traffic()).received_by_peer == {b.peer_id: 8 * MB}
    assert (tmp_path / "c").read_bytes() == (tmp_path / "a").read_bytes()


async def test_a_port_in_use_is_a_fault_with_its_fix():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        peer = new_peer(listen=f"/ip4/127.0.0.1/tcp/{taken.getsockname()[1]}")
        run = asyncio.create_task(peer.run())
        with pytest.raises(LocalNetworkFault, match="choose another port"):
            await peer.ready()
        with pytest.raises(LocalNetworkFault, match="choose another port"):
            await run


async def test_an_address_that_cannot_be_parsed_is_a_fault():
    peer = new_peer(listen="127.0.0.1:4001")
    run = asyncio.create_task(peer.run())
    with pytest.raises(LocalNetworkFault, match="multiaddr"):
        await peer.ready()
    with pytest.raises(LocalNetworkFault):
        await run


UNREACHABLE = {
    "a closed port": "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWGNoiDB8db4PBYXPHJGsDojntb8TV2ugDVfVydG3UsSPD",
    "no peer id": "/ip4/127.0.0.1/tcp/1",
    "not a multiaddress": "hello",
}


@pytest.mark.parametrize("address", UNREACHABLE.values(), ids=UNREACHABLE.keys())
async def test_an_address_without_a_peer_is_unreachable(address):
    a = new_peer()
    async with running(a):
        with pytest.raises(Unreachable):
            await a.dial([address])


async def test_a_peer_whose_key_differs_from_the_address_is_not_accepted():
    a, b, c = new_peer(), new_peer(), new_peer()
    async with running(a):
        false = [address.replace(a.peer_id, c.peer_id) for address in await a.addresses()]
        async with running(b):
            with pytest.raises(Unreachable):
                await b.dial(false)


async def test_a_peer_that_left_can_be_dialled_again():
    key, a = generate_key(), new_peer()
    b = ThreadedPeer(key, [LOOPBACK])
    a.serve("echo", echo, limit=100)
    async with running(a):
        async with running(b):
            await b.dial(await a.addresses())
            assert await b.request(a.peer_id, "echo", b"x", timeout=60)
        again = ThreadedPeer(key, [LOOPBACK])
        async with running(again):
            await again.dial(await a.addresses())
            assert await again.request(a.peer_id, "echo", b"x", timeout=60)


async def test_a_peer_that_returns_at_another_port_is_reached_there_at_once():
    key, a = generate_key(), new_peer()
    first, second = ThreadedPeer(key, [LOOPBACK]), ThreadedPeer(key, [LOOPBACK])
    async with running(a):
        async with running(first):
            old = await first.addresses()
            await a.dial(old)
        while await a.peers():  # noqa: ASYNC110 (connections have no event)
            await asyncio.sleep(0.01)
        with pytest.raises(Unreachable):
            await a.dial(old)
        async with running(second):
            assert await a.dial(await second.addresses()) == second.peer_id


async def test_a_dial_replaces_a_dead_connection_and_no_other(monkeypatch):
    monkeypatch.setattr(libp2p, "PING_ANSWER_SECONDS", 2.0)
    a, b = new_peer(), new_peer()
    a.serve("echo", echo, limit=100)
    async with running(a, b):
        addresses = await a.addresses()

        async def connection(transport):
            """Return the only connection with `a`."""
            [only] = transport.host.get_network().get_connections(ID.from_string(a.peer_id))
            return only

        async def swallow(transport) -> None:
            """Discard all later writes to the current connection, as on a dead link."""
            [only] = transport.connections.open

            async def lost(*pieces: bytes) -> None:
                pass

            only.muxed_conn.transport.send = lost

        first = await on_trio(b, connection)
        assert await b.dial(addresses) == a.peer_id
        assert await on_trio(b, connection) is first, "it answered"
        await on_trio(a, swallow)
        await on_trio(b, swallow)
        async with asyncio.timeout(60):
            while await on_trio(b, connection) is first:  # bytes in flight may still have arrived
                assert await b.dial(addresses) == a.peer_id
        assert await b.request(a.peer_id, "echo", b"x", timeout=60)
