"""Dial-back: the ports that are tried, and those that a request cannot make a peer try."""

import asyncio
import socket

import pytest

from echo2.p2p.discovery.dial_back import (
    AT_ONCE,
    DIAL_BACK_PAUSE_SECONDS,
    DIAL_BACK_SECONDS,
    METHOD,
    PORTS,
    DialBack,
    ip_of,
    ports_of,
)
from echo2.p2p.discovery.messages import ReachableRequest, ReachableResponse
from echo2.p2p.errors import Busy, Unreachable
from echo2.p2p.limits.origin import Origin
from echo2.p2p.multiaddr import tcp
from echo2.p2p.wire_types import decode, encode
from tests.support.clock import run_fake
from tests.support.libp2p_peers import new_peer, running
from tests.support.peers import IP6


class Seen:
    """A transport with one peer connected from `address`."""

    def __init__(self, address: str | None) -> None:
        self.address = address

    def remote(self, peer: str) -> str | None:
        return self.address

    def origin(self, peer: str) -> Origin:
        return Origin(peer, peer, peer == "known")


async def answer(address: str | None, *ports: int) -> ReachableResponse:
    return decode(
        await DialBack(Seen(address)).answer("peer", encode(ReachableRequest(ports=list(ports)))), ReachableResponse
    )


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


async def test_a_listening_port_counts_as_open_and_a_closed_one_does_not(listening):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        asked = (listening, closed.getsockname()[1])
        assert await answer("/ip4/127.0.0.1/tcp/5", *asked) == ReachableResponse(
            observed="127.0.0.1", ports=[listening]
        )


async def test_a_request_through_a_relay_gets_no_verdict(listening):
    assert await answer("/ip4/127.0.0.1/tcp/5/p2p/r/p2p-circuit/p2p/p", listening) == ReachableResponse()


async def test_a_privileged_port_is_not_tried(monkeypatch):
    tried = []

    async def connect(ip, port):
        tried.append(port)
        raise OSError

    monkeypatch.setattr("anyio.connect_tcp", connect)
    await answer("/ip4/192.0.2.1/tcp/5", 22, 25, 443, 4310)
    assert sorted(tried) == [443, 4310]


@pytest.mark.parametrize("first", ["/ip4/127.0.0.1/tcp/5", "/ip4/8.8.8.8/tcp/5"])
def test_a_second_request_from_one_subnet_is_refused_without_waiting(first):
    async def main():
        seen = Seen(first)
        dialback, ask = DialBack(seen), encode(ReachableRequest(ports=[]))
        await dialback.answer("eve", ask)
        seen.address = first.replace("8.8.8.8", "8.8.8.9")
        for _ in range(3):
            with pytest.raises(Busy):
                await dialback.answer("mallory", ask)
        assert asyncio.get_running_loop().time() == began
        seen.address = "/ip4/8.8.4.4/tcp/5"
        assert decode(await dialback.answer("alice", ask), ReachableResponse).observed == "8.8.4.4"
        seen.address = first
        await asyncio.sleep(DIAL_BACK_PAUSE_SECONDS)
        await dialback.answer("mallory", ask)

    began = 0.0

    async def timed():
        nonlocal began
        began = asyncio.get_running_loop().time()
        await main()

    run_fake(timed)


def test_a_request_beyond_the_attempts_at_a_time_is_refused_without_waiting(monkeypatch):
    async def connect(ip, port):
        await asyncio.sleep(DIAL_BACK_SECONDS)
        raise OSError

    monkeypatch.setattr("anyio.connect_tcp", connect)

    async def main():
        seen, ask = Seen(""), encode(ReachableRequest(ports=[4310, 4311, 4312, 4313]))
        dialback = DialBack(seen)
        async with asyncio.TaskGroup() as group:
            for number in range(AT_ONCE * 3 // 4 // PORTS):
                seen.address = f"/ip4/8.8.{number}.8/tcp/5"
                group.create_task(dialback.answer("eve", ask))
                await asyncio.sleep(0)
            seen.address = "/ip4/8.9.0.8/tcp/5"
            with pytest.raises(Busy):
                await dialback.answer("alice", ask)
            group.create_task(dialback.answer("known", ask))
            await asyncio.sleep(0)
            seen.address = "/ip4/8.10.0.8/tcp/5"
            with pytest.raises(Busy):
                await dialback.answer("known", ask)
        await dialback.answer("alice", ask)

    run_fake(main)


@pytest.mark.parametrize(
    ("address", "ip"),
    [
        ("/ip4/192.0.2.1/tcp/5/p2p/x", "192.0.2.1"),
        ("/ip6/::ffff:192.0.2.1/tcp/5", "192.0.2.1"),
        ("/ip6/2001:db8::1/tcp/5", "2001:db8::1"),
        ("/ip4/192.0.2.1/tcp/5/p2p/r/p2p-circuit/p2p/x", None),
        ("/memory/x", None),
        ("/ip4/what/tcp/5", None),
        (None, None),
    ],
)
def test_the_ip_address_in(address, ip):
    assert ip_of(address) == ip


def test_ports_are_those_of_direct_addresses():
    addresses = ["/ip4/0.0.0.0/tcp/1", "/ip6/::/tcp/2", "/ip4/1.2.3.4/tcp/9/p2p/r/p2p-circuit/p2p/x", "/memory/x"]
    assert ports_of(addresses) == [1, 2]


def test_a_string_that_is_no_ip_address_makes_no_multiaddress():
    assert tcp("2001:db8::1", 7, "x") == "/ip6/2001:db8::1/tcp/7/p2p/x"
    with pytest.raises(Unreachable):
        tcp("/etc/passwd", 7, "x")


@pytest.mark.parametrize("listen", ["/ip4/127.0.0.1/tcp/0", IP6])
async def test_real_peers_dial_back(listen):
    a, b = new_peer(listen=listen), new_peer(listen=listen)
    async with running(a, b):
        ports = ports_of(await a.addresses())
        answer = decode(
            await a.request(b.peer_id, METHOD, encode(ReachableRequest(ports=ports)), timeout=60), ReachableResponse
        )
        assert answer == ReachableResponse(observed=listen.split("/")[2], ports=ports)
