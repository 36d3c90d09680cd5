"""Dialling back: what is tried, and what nobody can make a peer try."""

import asyncio
import socket

import pytest

from p2p.errors import Unreachable
from p2p.messages import Reachable, ReachableAsk, decode, encode
from p2p.reachable import METHOD, DialBack, ip_of, multiaddress, ports_of
from tests.p2p.test_p2p_libp2p import made, running
from tests.peers import IP6


class Seen:
    """A transport of which one peer is connected from `address`."""

    def __init__(self, address: str | None) -> None:
        self.address = address

    def remote(self, peer: str) -> str | None:
        return self.address


async def answer(address: str | None, *ports: int) -> Reachable:
    return decode(await DialBack(Seen(address)).answer("peer", encode(ReachableAsk(ports=list(ports)))), Reachable)


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


async def test_a_port_that_listens_is_found_and_one_that_does_not_is_not(listening):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        asked = (listening, closed.getsockname()[1])
        assert await answer("/ip4/127.0.0.1/tcp/5", *asked) == Reachable(observed="127.0.0.1", ports=[listening])


async def test_who_comes_through_a_relay_gets_no_verdict(listening):
    assert await answer("/ip4/127.0.0.1/tcp/5/p2p/r/p2p-circuit/p2p/p", listening) == Reachable()


async def test_a_privileged_port_is_not_tried(monkeypatch):
    tried = []

    async def connect(ip, port):
        tried.append(port)
        raise OSError

    monkeypatch.setattr("anyio.connect_tcp", connect)
    await answer("/ip4/192.0.2.1/tcp/5", 22, 25, 443, 4310)
    assert sorted(tried) == [443, 4310]


async def test_questions_from_one_address_wait_for_each_other(listening):
    dialback = DialBack(Seen("/ip4/127.0.0.1/tcp/5"))
    ask = encode(ReachableAsk(ports=[]))
    began = asyncio.get_running_loop().time()
    await asyncio.gather(*(dialback.answer(f"peer {number}", ask) for number in range(2)))
    assert asyncio.get_running_loop().time() - began >= 1.9


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


def test_what_is_no_ip_address_makes_no_multiaddress():
    assert multiaddress("2001:db8::1", 7, "x") == "/ip6/2001:db8::1/tcp/7/p2p/x"
    with pytest.raises(Unreachable):
        multiaddress("/etc/passwd", 7, "x")


@pytest.mark.parametrize("listen", ["/ip4/127.0.0.1/tcp/0", IP6])
async def test_real_peers_dial_back(listen):
    a, b = made(listen=listen), made(listen=listen)
    async with running(a, b):
        ports = ports_of(await a.addresses())
        found = decode(await a.request(b.peer_id, METHOD, encode(ReachableAsk(ports=ports)), timeout=60), Reachable)
        assert found == Reachable(observed=listen.split("/")[2], ports=ports)
