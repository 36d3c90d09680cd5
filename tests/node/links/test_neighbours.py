"""The choice of neighbours among the peer records that a node receives."""

from pathlib import Path
from unittest import mock

import pytest

from echo2.node.links.neighbours import (
    ANCHORS,
    NEIGHBOURS,
    PER_SUBNET,
    REMEMBERED_RECORDS,
    Neighbours,
    choose_neighbours,
)
from echo2.p2p.discovery.dialer import PeerDialer
from echo2.p2p.discovery.peer_records import RECORD_LIFE_MS, RecordIssuer
from echo2.p2p.errors import Unreachable
from echo2.p2p.identity import generate_key, peer_id, public_bytes
from echo2.p2p.limits.dial_backoff import FAILURE_EACH, FAILURES
from echo2.p2p.multiaddr import peer_of

RUN, NOW = b"r" * 32, 1_700_000_000_000


def address(ip: str, peer: str, port: int = 4001) -> str:
    return f"/ip4/{ip}/tcp/{port}/p2p/{peer}"


class Lines:
    """A network that supports only dialling."""

    peer_id = "own"

    nobody = False

    def __init__(self, *dead: str) -> None:
        self.dialled: list[str] = []
        self._dead = dead

    async def peers(self) -> list[str]:
        return ["already"]

    async def dial(self, addresses: list[str]) -> str:
        self.dialled += addresses
        if self.nobody or addresses[0] in self._dead:
            raise Unreachable(addresses[0])
        return peer_of(addresses[0])


def test_one_subnet_is_only_a_part_of_the_neighbourhood():
    flood = [address(f"8.8.8.{number}", f"liar{number}") for number in range(100)]
    honest = [address(f"9.9.{number}.1", f"honest{number}") for number in range(3)]
    picked = choose_neighbours([*flood, *honest], ())
    assert picked == [*flood[:PER_SUBNET], *honest]


def test_made_up_peers_at_one_address_cost_it_one_connection():
    picked = choose_neighbours([address("8.8.8.8", f"ghost{number}", 4000 + number) for number in range(50)], ())
    assert len(picked) == 1


def test_machines_of_a_private_network_may_all_be_neighbours():
    assert len(choose_neighbours([address("10.0.0.7", f"gpu{n}", 4000 + n) for n in range(20)], ())) == NEIGHBOURS


def test_no_peer_is_dialled_twice():
    twice = [address("8.8.8.8", "bob"), address("9.9.9.9", "bob"), address("7.7.7.7", "already")]
    assert choose_neighbours(twice, {"already"}) == twice[:1]


def record(host: str, *, now: int = NOW, names: int = 1) -> tuple[str, bytes]:
    """Return the first address of a new peer, and its record."""
    key = generate_key()
    where = [address(host.format(number), peer_id(public_bytes(key))) for number in range(names)]
    return where[0], RecordIssuer(key, RUN).issue(where, now)


def world(path: Path, *dead: str, now: int = NOW) -> tuple[Lines, Neighbours]:
    lines = Lines(*dead)
    dialer = PeerDialer(lines, RUN, lambda: now)  # type: ignore[arg-type]
    return lines, Neighbours(lines, dialer, path / "peers", 0)  # type: ignore[arg-type]


async def test_neighbours_of_before_are_dialled_first_after_a_restart(tmp_path: Path):
    old = [record(f"9.9.{number}.1") for number in range(ANCHORS)]
    _, before = world(tmp_path)
    await before.on_welcome([sealed for _, sealed in old])
    flood = [record(f"8.{number}.8.8")[1] for number in range(2 * REMEMBERED_RECORDS)]
    await before.on_welcome(flood)
    lines, after = world(tmp_path, now=NOW + 10 * RECORD_LIFE_MS)
    assert len(after.addresses()) == ANCHORS + REMEMBERED_RECORDS, "of long ago, and tried all the same"
    await after.search()
    assert set(lines.dialled[:ANCHORS]) == {where for where, _ in old}
    assert len(lines.dialled) == NEIGHBOURS


async def test_a_peer_that_cannot_be_dialled_is_no_anchor(tmp_path: Path):
    dead, alive = record("8.8.8.8"), record("9.9.9.9")
    lines, neighbours = world(tmp_path, dead[0])
    await neighbours.on_welcome([dead[1], alive[1]])
    assert set(lines.dialled) == {dead[0], alive[0]}
    assert neighbours.addresses()[0] == alive[0]


@pytest.mark.parametrize("bytes_", [b'["/ip4/', b"\x92\x91", b"\xc1"])
def test_a_damaged_file_counts_as_empty(tmp_path: Path, bytes_: bytes):
    (tmp_path / "peers").write_bytes(bytes_)
    assert world(tmp_path)[1].addresses() == []


async def test_only_addresses_signed_by_their_own_peer_are_dialled(tmp_path: Path):
    where, good = record("9.9.9.9")
    _, stale = record("7.7.7.7", now=NOW - RECORD_LIFE_MS)
    _, other = record("6.6.6.6")
    forged = other.replace(b"/6.6.6.6/", b"/5.5.5.5/")
    lines, neighbours = world(tmp_path)
    await neighbours.on_welcome([b"", stale, forged, b"/ip4/8.8.8.8/tcp/4310/p2p/x", good])
    assert lines.dialled == [where]


@pytest.mark.slow
async def test_a_flood_of_records_that_name_one_victim_costs_it_a_few_connections_per_hour(tmp_path: Path):
    """The flood names the victim's host, then every host of its subnet, each as a new peer at every greeting."""
    lines, neighbours = world(tmp_path)
    lines.nobody = True
    for minute in range(60):
        crowd = [record("8.8.8.8")[1] for _ in range(10)] + [record(f"8.8.8.{n}")[1] for n in range(10)]
        with mock.patch("anyio.current_time", return_value=60.0 * minute):
            await neighbours.on_welcome(crowd)
    assert len(lines.dialled) <= FAILURES + 3600 / FAILURE_EACH


def test_peers_behind_a_relay_that_is_connected_are_no_flood():
    behind = [f"{address('8.8.8.8', 'relay')}/p2p-circuit/p2p/node{number}" for number in range(5)]
    assert choose_neighbours(behind, ()) == behind[:1]
    assert choose_neighbours(behind, (), relays=["relay"]) == behind


async def test_a_peer_of_many_addresses_is_dialled_at_one(tmp_path: Path):
    lines, neighbours = world(tmp_path)
    await neighbours.on_welcome([record("10.0.0.{}", names=8)[1]])
    assert len(lines.dialled) == 1
