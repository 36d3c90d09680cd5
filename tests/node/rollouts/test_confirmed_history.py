"""The first head of the ledger is taken as it is: the owner is told until other parties have shown the same history."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from echo2.node.errors import TrustFailure
from echo2.node.rollouts.ledger_sources import PeerSource
from echo2.p2p.envelope import seal
from echo2.p2p.errors import Unreachable
from echo2.p2p.wire_types import encode
from echo2.protocol.ledger_heads import GrownHead, LedgerRequest, LedgerResponse
from tests.support.followed_ledger import World


class Watched(World):
    """A world in which the node has peers of other parties. `shown`: answer of each party's peers; None: none comes."""

    def __init__(self, folder: Path) -> None:
        self.shown: list[tuple[str, bytes | None]] = []
        super().__init__(folder)

    async def peers(self) -> list[Any]:
        return [PeerSource(party, _showing(sealed)) for party, sealed in self.shown]

    def newest(self) -> bytes:
        head = self.heads.newest()
        assert head is not None
        return head.sealed

    @property
    def history(self) -> str:
        return self.exchange.history


def _showing(sealed: bytes | None) -> Any:
    async def ask(request: LedgerRequest) -> LedgerResponse:
        if sealed is None:
            raise Unreachable("peer")
        return LedgerResponse(heads=[GrownHead(sealed=sealed)])

    return ask


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Watched]:
    new = Watched(tmp_path)
    new.work("a", 3)
    yield new
    new.close()


def test_a_node_alone_works_and_says_so(world: Watched) -> None:
    world.shown = [("192.0.2.0/24", None)]
    world.follow()
    assert world.store.newest() is not None
    assert world.history == "unconfirmed (shown by 0 of 2 other parties)"


def test_two_peers_of_one_party_are_one_and_two_parties_confirm(world: Watched) -> None:
    world.shown = [("192.0.2.0/24", world.newest()), ("192.0.2.0/24", world.newest())]
    world.follow()
    assert world.history == "unconfirmed (shown by 1 of 2 other parties)"
    world.shown = [("198.51.100.0/24", world.newest())]
    world.follow()
    assert world.history == "confirmed"


def test_an_older_head_says_nothing_of_the_first_one_and_a_later_one_does_once_it_is_here(world: Watched) -> None:
    older = world.newest()
    world.work("b", 2)
    world.shown = [("192.0.2.0/24", older), ("198.51.100.0/24", older)]
    world.follow()
    assert world.history.startswith("unconfirmed (shown by 0")
    first = world.answers(LedgerRequest())
    world.work("c", 2)
    world.shown = [("192.0.2.0/24", world.newest()), ("198.51.100.0/24", world.newest())]
    world.answers = lambda request: LedgerResponse(every=first.every)
    world.follow()
    assert world.history.startswith("unconfirmed (shown by 0"), "the node has yet to take that head"
    world.answers = world._answer
    world.follow()
    assert world.history == "confirmed"


def test_a_peer_with_another_head_of_the_first_ones_number_shows_a_fork(world: Watched) -> None:
    head = world.heads.newest()
    assert head is not None
    other = encode(msgspec.structs.replace(head.head, root=b"o" * 32))
    world.shown = [("192.0.2.0/24", seal("ledgerhead", world.run.id, other, world.run.keys.ledger))]
    with pytest.raises(TrustFailure):
        world.follow()
    assert world.history.startswith("unconfirmed (shown by 0")
