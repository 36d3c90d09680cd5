"""Whom a node dials among the volunteers that it hears of."""

from pathlib import Path

from node.neighbours import ANCHORS, NEIGHBOURS, PER_SUBNET, REMEMBERED, Neighbours, chosen
from p2p.errors import Unreachable


def address(ip: str, peer: str, port: int = 4001) -> str:
    return f"/ip4/{ip}/tcp/{port}/p2p/{peer}"


class Lines:
    """A network that can only be dialled."""

    peer_id = "own"

    def __init__(self, *dead: str) -> None:
        self.dialled: list[str] = []
        self._dead = dead

    async def peers(self) -> list[str]:
        return ["already"]

    async def dial(self, addresses: list[str]) -> str:
        self.dialled += addresses
        if addresses[0] in self._dead:
            raise Unreachable(addresses[0])
        return addresses[0]


def test_one_subnet_is_only_a_part_of_the_neighbourhood():
    flood = [address(f"8.8.8.{number}", f"liar{number}") for number in range(100)]
    honest = [address(f"9.9.{number}.1", f"honest{number}") for number in range(3)]
    found = chosen([*flood, *honest], ())
    assert found == [*flood[:PER_SUBNET], *honest]


def test_made_up_peers_at_one_address_cost_it_one_connection():
    found = chosen([address("8.8.8.8", f"ghost{number}", 4000 + number) for number in range(50)], ())
    assert len(found) == 1


def test_machines_of_a_private_network_may_all_be_neighbours():
    assert len(chosen([address("10.0.0.7", f"gpu{n}", 4000 + n) for n in range(20)], ())) == NEIGHBOURS


def test_nobody_is_dialled_twice():
    twice = [address("8.8.8.8", "bob"), address("9.9.9.9", "bob"), address("7.7.7.7", "already")]
    assert chosen(twice, {"already"}) == twice[:1]


async def test_neighbours_that_were_reached_before_come_first_after_a_restart(tmp_path: Path):
    old = [address(f"9.9.{number}.1", f"old{number}") for number in range(ANCHORS)]
    before = Neighbours(Lines(), tmp_path / "peers.json", 0)  # type: ignore[arg-type]
    await before.meet(old)
    flood = [address(f"8.{number}.8.8", f"liar{number}") for number in range(200)]
    before.remember(flood)
    assert len(before.remembered()) == REMEMBERED
    lines = Lines()
    after = Neighbours(lines, tmp_path / "peers.json", 1)  # type: ignore[arg-type]
    await after.search()
    assert set(lines.dialled[:ANCHORS]) == set(old)
    assert len(lines.dialled) == NEIGHBOURS


async def test_who_is_not_reached_is_no_anchor(tmp_path: Path):
    dead, alive = address("8.8.8.8", "dead"), address("9.9.9.9", "alive")
    neighbours = Neighbours(Lines(dead), tmp_path / "peers.json", 0)  # type: ignore[arg-type]
    await neighbours.meet([dead, alive])
    neighbours.remember([])
    assert neighbours.remembered() == [alive]


def test_a_spoilt_file_is_the_same_as_none(tmp_path: Path):
    (tmp_path / "peers.json").write_text('["/ip4/')
    assert Neighbours(Lines(), tmp_path / "peers.json", 0).remembered() == []  # type: ignore[arg-type]


def test_peers_behind_a_relay_that_is_connected_are_no_flood():
    behind = [f"{address('8.8.8.8', 'relay')}/p2p-circuit/p2p/node{number}" for number in range(5)]
    assert chosen(behind, ()) == behind[:1]
    assert chosen(behind, (), relays=["relay"]) == behind


async def test_a_peer_of_many_addresses_is_dialled_at_one(tmp_path: Path):
    lines = Lines()
    await Neighbours(lines, tmp_path / "peers", seed=1).meet([address(f"10.0.0.{n}", "many") for n in range(9)])
    assert len(lines.dialled) == 1
