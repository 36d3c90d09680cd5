"""Addresses in the in-memory network: one per peer, another one after a move."""

import ipaddress

from benchmarks.memory_network.places import MemoryAddresses
from echo2.p2p.multiaddr import address_of

SHARED_SPACE = ipaddress.ip_network("100.64.0.0/10")


def test_each_peer_has_an_address_of_its_own_that_no_machine_on_the_internet_has() -> None:
    places = MemoryAddresses()
    addresses = [places.address(f"peer{number}") for number in range(300)]
    hosts = [address_of(address).ip for address in addresses]
    assert len(set(hosts)) == 300
    assert all(host in SHARED_SPACE for host in hosts if host is not None)
    assert places.address("peer7") == addresses[7]


def test_after_a_move_the_old_address_no_longer_leads_to_the_peer() -> None:
    places = MemoryAddresses()
    before = places.address("alice")
    assert places.is_current(before)
    places.move("alice")
    assert not places.is_current(before)
    assert places.is_current(places.address("alice"))


def test_an_address_without_a_host_leads_to_its_peer_after_any_move() -> None:
    places = MemoryAddresses()
    places.move("alice")
    assert places.is_current("/memory/alice")
