"""Test the addresses that others can dial, from those that a peer listens on."""

import socket

import pytest

from echo2.p2p.local_addresses import dialable, is_taken, machine_addresses
from echo2.p2p.multiaddr import MOST_ADDRESSES

MACHINE = ["192.0.2.7", "198.51.100.1", "2001:db8::7"]


@pytest.mark.parametrize(
    ("address", "expected"),
    {
        "a plain one gets the peer id": ("/dns4/example.org/tcp/1", ["/dns4/example.org/tcp/1/p2p/P"]),
        "one with a peer id stays": ("/ip4/192.0.2.9/tcp/1/p2p/Q", ["/ip4/192.0.2.9/tcp/1/p2p/Q"]),
        "every IPv4 interface": ("/ip4/0.0.0.0/tcp/1", ["/ip4/192.0.2.7/tcp/1/p2p/P", "/ip4/198.51.100.1/tcp/1/p2p/P"]),
        "every IPv6 interface": ("/ip6/::/tcp/1", ["/ip6/2001:db8::7/tcp/1/p2p/P"]),
        "no multiaddress is left alone": ("/ip4/x", ["/ip4/x/p2p/P"]),
    }.values(),
)
def test_an_address_becomes_what_a_node_can_dial(address: str, expected: list[str]) -> None:
    assert dialable([address], "P", MACHINE) == expected


def test_each_address_is_listed_once_and_their_number_is_bounded() -> None:
    assert dialable(["/ip4/192.0.2.7/tcp/1", "/ip4/0.0.0.0/tcp/1"], "P", ["192.0.2.7"]) == [
        "/ip4/192.0.2.7/tcp/1/p2p/P"
    ]
    assert len(dialable([f"/ip4/192.0.2.7/tcp/{port}" for port in range(99)], "P", [])) == MOST_ADDRESSES


def test_a_machine_has_at_least_one_address() -> None:
    assert machine_addresses()


def test_a_port_that_another_process_shares_is_taken() -> None:
    """libp2p's listeners allow others on their port: two nodes once listened on one, and peers met either by chance."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        assert is_taken(f"/ip4/127.0.0.1/tcp/{port}")
    assert not is_taken(f"/ip4/127.0.0.1/tcp/{port}")
    assert not is_taken("/ip4/127.0.0.1/tcp/0")
