"""A Root that revokes a key settles a fork by it: the node keeps each head that the coordinator's heads continue."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.run import keys_commands, setup
from echo2.coordinator.run.setup import Run
from echo2.node.errors import TrustFailure
from echo2.node.rollouts.ledger_sources import PeerSource
from echo2.p2p.envelope import decode_unverified, seal
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.ledger_heads import GrownHead, LedgerHead, LedgerRequest, LedgerResponse
from tests.support.followed_ledger import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    for name in ("first", "second", "third"):
        world.work(name, 3)
        world.follow()
    yield world
    world.close()


def kept(world: World) -> list[bytes]:
    return [sealed for sealed, _ in world.store.heads()]


def own(world: World) -> list[bytes]:
    return [one.sealed for one in world.heads.all()]


def by_thief(run: Run, like: bytes, number: int = 0) -> bytes:
    """Return another head of the number of `like`, or of `number`, by the run's key as it is."""
    head = decode(decode_unverified(like).payload, LedgerHead)
    other = msgspec.structs.replace(head, root=b"t" * 32, number=number or head.number)
    return seal("ledgerhead", run.id, encode(other), run.keys.ledger)


def shown(world: World, *heads: bytes) -> None:
    """Let a peer show heads as evidence; the node ends."""
    asyncio.run(world.exchange._answer("peer", LedgerRequest(fork=list(heads))))
    with pytest.raises(TrustFailure):
        world.follow()


def revoked(world: World) -> None:
    """Revoke the ledger's key, and let the run go on with another."""
    world.now += 1_000
    world.database.close()
    keys_commands.change(world.run.folder.path, "ledger", now=world.now, secret=None, since=world.now)
    world.run = setup.load_run(world.run.folder.path, env={}, now=world.now)
    world.exchange._context.trust_store.trusted.chain = world.run.chain
    world.open()


def test_a_thief_who_names_the_first_number_costs_no_node_its_heads(world: World) -> None:
    before, proved = kept(world), world.store.count_proved()
    assert (len(before), proved) == (3, 9)
    shown(world, by_thief(world.run, before[0]))
    revoked(world)
    world.follow()
    assert world.store.fork() is None
    assert len(world.store.settled_forks()) == 1
    assert (kept(world), world.store.count_proved()) == (before, proved), "nothing of it was in doubt"
    world.work("fourth", 3)
    world.follow()
    assert kept(world) == own(world)
    assert world.store.count_proved() == 12


def test_heads_of_the_thief_that_a_node_took_go_and_no_others(world: World) -> None:
    """The node has a third head, and two behind it, that the coordinator never signed: it signs none yet."""
    before = kept(world)
    world.store.drop_behind(2)
    for number in (3, 4, 5):
        sealed = by_thief(world.run, before[2], number)
        head = decode(decode_unverified(sealed).payload, LedgerHead)
        row = (number, head.size + number, head.root, sealed, 1)
        world.store._file.do("INSERT INTO heads VALUES (?, ?, ?, ?, ?)", row)
    shown(world, before[2])
    revoked(world)
    world.follow()
    world.follow()
    assert kept(world) == before[:2], "the third waits for a head that vouches for it"
    world.work("fourth", 3)
    world.follow()
    assert kept(world) == own(world)


def test_a_peer_gives_no_head_while_the_newest_is_in_doubt(world: World) -> None:
    shown(world, by_thief(world.run, kept(world)[0]))
    revoked(world)
    before, asked = kept(world), list[LedgerRequest]()

    async def peer(request: LedgerRequest) -> LedgerResponse:
        asked.append(request)
        return LedgerResponse(heads=[GrownHead(sealed=own(world)[-1])])

    async def peers(most: int = 2) -> list[object]:
        return [PeerSource("party", peer)]

    world.peers = peers  # type: ignore[method-assign,assignment]
    world.follow()
    world.follow()
    assert (kept(world), asked) == (before, [])
    world.work("fourth", 3)
    world.follow()
    assert asked
