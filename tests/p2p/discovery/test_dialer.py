"""Dialling of peers by their records: invalid records, wrong identities, and addresses that fail."""

from collections.abc import Sequence

import pytest

from echo2.p2p.discovery.dialer import PeerDialer
from echo2.p2p.discovery.peer_records import RECORD_LIFE_MS, RecordIssuer
from echo2.p2p.errors import Unreachable
from echo2.p2p.identity import generate_key, peer_id, public_bytes
from echo2.p2p.multiaddr import Route

RUN, NOW = bytes(range(32)), 1_700_000_000_000


class Connections:
    """`Links` over a table of addresses: address -> the peer that answers there."""

    def __init__(self, answering: dict[str, str]) -> None:
        self.answering = answering
        self.dialled: list[str] = []
        self.peer_id = "own"

    async def peers(self) -> list[str]:
        return []

    async def routes(self) -> dict[str, Route]:
        return {}

    async def dial(self, addresses: Sequence[str]) -> str:
        (address,) = addresses
        self.dialled.append(address)
        if address not in self.answering:
            raise Unreachable(f"no peer answers at {address}")
        return self.answering[address]


def at(number: int, peer: str) -> str:
    return f"/ip4/8.8.{number}.8/tcp/4310/p2p/{peer}"


def dialer(answering: dict[str, str]) -> tuple[PeerDialer, Connections]:
    connections = Connections(answering)
    return PeerDialer(connections, RUN, lambda: NOW), connections


def test_valid_records_are_stored_in_order_and_an_invalid_one_is_dropped_alone() -> None:
    keys = [generate_key() for _ in range(3)]
    peers = [peer_id(public_bytes(key)) for key in keys]
    valid = [RecordIssuer(key, RUN).issue([at(1, peer)], NOW) for key, peer in zip(keys, peers, strict=True)]
    expired = RecordIssuer(generate_key(), RUN).issue([], NOW - RECORD_LIFE_MS)
    one, _ = dialer({})
    stored = one.take([valid[0], b"garbage", valid[1], expired, valid[2]])
    assert [record.peer for record in stored] == peers
    assert [record and record.sealed for record in map(one.records.of, peers)] == valid


async def test_a_peer_with_another_identity_than_the_address_names_is_a_failed_dial() -> None:
    one, _ = dialer({at(1, "expected"): "another"})
    with pytest.raises(Unreachable, match="another peer answers"):
        await one.dial(at(1, "expected"))
    with pytest.raises(Unreachable, match=r"8\.8\.1\.8"):
        await one.dial(at(1, "expected"))


async def test_addresses_are_dialled_in_order_until_one_is_reached() -> None:
    addresses = [at(number, "peer") for number in range(4)]
    one, connections = dialer({addresses[2]: "peer", addresses[3]: "peer"})
    assert await one.dial_any(addresses)
    assert connections.dialled == addresses[:3]
    assert not await one.dial_any([at(9, "peer")])
