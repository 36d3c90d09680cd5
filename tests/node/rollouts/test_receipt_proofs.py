"""Proofs of receipts over a real ledger: entries, ends without an entry, and receipts that are lost."""

import hashlib
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from echo2.coordinator.accounts.end_proofs import EndProofs
from echo2.coordinator.accounts.head_signing import entry_proof
from echo2.coordinator.accounts.lease_ends import ENTRY_DUE_MS
from echo2.coordinator.market.entries import EpochClosed
from echo2.ledger.epoch_facts import ClosedNode
from echo2.node.rollouts.ledger_sources import Source
from echo2.node.rollouts.outbox import LOST_RECEIPT, Outbox
from echo2.node.rollouts.receipt_proofs import ENDS_KEPT, ReceiptProofs
from echo2.node.trust.ledger_store import LedgerStore
from echo2.node.trust.ledger_witness import NotProved, WitnessedHead, check_weight, opened_costs
from echo2.node.trust.pay_witness import own_epoch
from echo2.p2p.envelope import seal
from echo2.p2p.identity import generate_key, peer_id
from echo2.p2p.swarm import merkle
from echo2.p2p.wire_types import encode
from echo2.protocol.authority import Root
from echo2.protocol.leases import Receipt
from echo2.protocol.ledger_heads import MOST_KEYS, LedgerHead, LedgerRequest, LedgerResponse
from tests.support.costs import COSTS, LEDGER_KEYS, sealed_costs
from tests.support.group_world import ALICE, BOB, RUN, T0, World, group

KEY = generate_key()
ROLES = dict.fromkeys(("root", "policy", "channel", "ledger"), LEDGER_KEYS)
ROOT = Root(run=RUN, serial=1, roles=ROLES, expires=1 << 50, issued=0)


class Witness:
    """A node's outbox and store beside a coordinator's ledger. `asked`: requests of the coordinator. `proves`, `https`:
    whether the coordinator proves, and whether it is there over HTTPS."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world, self.path = world, folder / "outbox.sqlite"
        self.outbox = Outbox(self.path, node=ALICE, limit=99)
        self.store = LedgerStore(folder / "ledger.sqlite")
        self.asked: list[LedgerRequest] = []
        self.proves, self.https = True, False
        trust_store = SimpleNamespace(trusted=SimpleNamespace(chain=[ROOT]), serial=ROOT.serial)
        self._proofs = ReceiptProofs(self.outbox, self.store, self, trust_store)  # type: ignore[arg-type]

    def close(self) -> None:
        self.outbox.close()
        self.store.close()

    def coordinator(self) -> Source:
        return self._asked

    async def instead(self, *, entries: bool) -> AsyncIterator[Source]:
        if self.https:
            yield self._answer

    async def _asked(self, request: LedgerRequest) -> LedgerResponse:
        self.asked.append(request)
        return await self._answer(request) if self.proves else LedgerResponse()

    async def _answer(self, request: LedgerRequest) -> LedgerResponse:
        service = self.world.group_service
        ends = EndProofs(service.database).proofs(request.leases, request.size)
        keyed = [entry.seq for key in request.keys if (entry := service.ledger.find(key)) is not None]
        numbers = [*request.entries, *keyed, *(end.entry for end in ends[:1])]
        proofs = [entry_proof(service.ledger, number, request.size) for number in numbers]
        return LedgerResponse(proofs=[proof for proof in proofs if proof is not None], ends=ends)

    def receive(self, *receipts: Receipt) -> None:
        """Store receipts, as received now."""
        with closing(sqlite3.connect(self.path, isolation_level=None)) as database:
            for one in receipts:
                sealed = seal("receipt", RUN, encode(one), KEY)
                row = (one.lease, one.verdict, bytes(32), sealed, self.world.now, self.world.now, one.entry)
                database.execute(
                    "INSERT INTO submissions (lease, state, hash, receipt, made, decided, entry) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?)",
                    row,
                )

    async def fetch(self, number: int = 1) -> None:
        """Take a head over the whole ledger, and fetch proofs under it."""
        ledger = self.world.group_service.ledger
        tip = ledger.tip()
        head = LedgerHead(
            log=RUN, number=number, size=tip.entries, root=ledger.tree.root(tip.entries), tip=tip.hash, issued=number
        )
        self.store.put(WitnessedHead(head, seal("ledgerhead", RUN, encode(head), KEY)), 0)
        await self._proofs.fetch(self.world.now)

    def count_proved(self) -> dict[bytes, int]:
        return {row.lease: row.proved for row in self.outbox.rows()}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Return a coordinator on a new database; its file is closed after the test."""
    with closing(World(tmp_path)) as opened:
        yield opened


@pytest.fixture
def witness(world: World, tmp_path: Path) -> Iterator[Witness]:
    new_witness = Witness(world, tmp_path)
    yield new_witness
    new_witness.close()


def refused(world: World, node: bytes = ALICE) -> Receipt:
    return world.refused(group(world.lease(node), rollouts=[]), node)


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def accepted(world: World) -> Receipt:
    world.submit(group(world.lease(ALICE)), ALICE)
    (receipt,) = world.decide_all()
    assert receipt.entry
    return receipt


def pass_a_minute(world: World) -> None:
    world.now += ENTRY_DUE_MS
    world.group_service.tick(world.now)


async def test_ends_of_several_entries_are_proved_one_entry_per_request(world: World, witness: Witness) -> None:
    receipts = [refused(world), refused(world)]
    pass_a_minute(world)
    receipts.append(refused(world, BOB))
    pass_a_minute(world)
    witness.receive(*receipts)
    await witness.fetch()
    assert witness.count_proved() == {one.lease: 1 for one in receipts}
    assert len(witness.asked) == 2
    assert set(witness.store.ends()) == {one.lease for one in receipts}
    assert witness.store.count_proved() == 3
    await witness.fetch(2)
    assert len(witness.asked) == 2, "nothing is missing"


async def test_the_number_of_proofs_is_kept_and_not_counted_for_each_status(world: World, witness: Witness) -> None:
    statements: list[str] = []
    witness.receive(accepted(world))
    await witness.fetch()
    assert witness.store.count_proved() == 1
    witness.store._file._database.set_trace_callback(statements.append)
    witness.receive(accepted(world), refused(world))
    pass_a_minute(world)
    await witness.fetch(2)
    assert witness.store.count_proved() == 3
    again = witness.store.proofs()
    for lease, proved in again.items():
        witness.store.put_proof(lease, proved)
    assert witness.store.count_proved() == 3, "a proof that is stored again counts once"
    assert not [one for one in statements if "count(*)" in one], "no statement reads all proofs"
    witness.store.drop_behind(1)
    assert witness.store.count_proved() == len(witness.store.proofs()) + len(witness.store.ends()) == 1


async def test_an_end_that_no_entry_covers_yet_is_asked_for_again_later(world: World, witness: Witness) -> None:
    known = [accepted(world) for _ in range(3)][-1]
    receipt = refused(world, BOB)
    witness.receive(known, receipt)
    await witness.fetch()
    assert witness.count_proved() == {known.lease: 1, receipt.lease: 0}
    pass_a_minute(world)
    await witness.fetch(2)
    assert witness.count_proved() == {known.lease: 1, receipt.lease: 1}


async def test_an_end_older_than_the_coordinator_keeps_them_is_not_asked_for(world: World, witness: Witness) -> None:
    witness.receive(refused(world, BOB))
    accepted(world)
    world.now += ENDS_KEPT + 1
    await witness.fetch()
    assert witness.asked == []
    assert witness.outbox.unproved_counts(world.now - ENDS_KEPT) == (0, 1)


async def test_a_receipt_in_whose_place_another_entry_stands_is_lost_and_hinders_no_other(
    world: World, witness: Witness
) -> None:
    first, second = accepted(world), accepted(world)
    claim = msgspec.structs.replace(first, lease=b"a lost lease 16b", entry_hash=b"h" * 32)
    witness.receive(claim, second)
    await witness.fetch()
    assert witness.count_proved() == {claim.lease: LOST_RECEIPT, second.lease: 1}
    assert witness.store.lost_leases() == [claim.lease]
    assert witness.outbox.unproved_since() == (0, None)


async def test_an_entry_of_the_same_lease_that_was_made_anew_is_not_the_receipts(
    world: World, witness: Witness
) -> None:
    receipt = accepted(world)
    witness.receive(msgspec.structs.replace(receipt, entry_hash=b"h" * 32))
    await witness.fetch()
    assert witness.store.lost_leases() == [receipt.lease]


async def test_a_proof_that_does_not_hold_hinders_no_other_one(world: World, witness: Witness) -> None:
    receipts = [accepted(world), accepted(world), accepted(world)]
    witness.receive(*receipts)
    honest = witness._answer

    async def lying(request: LedgerRequest) -> LedgerResponse:
        answer = await honest(request)
        proofs = [
            msgspec.structs.replace(one, path=[bytes(32)]) if one.entry == receipts[0].entry else one
            for one in answer.proofs
        ]
        return LedgerResponse(proofs=proofs)

    witness._answer = lying  # type: ignore[method-assign]
    with pytest.raises(NotProved, match="is not proved to be under a head"):
        await witness.fetch()
    assert witness.count_proved() == {one.lease: int(one is not receipts[0]) for one in receipts}
    assert witness.store.lost_leases() == []


async def test_an_end_that_does_not_hold_hinders_no_other_one(world: World, witness: Witness) -> None:
    receipts = [refused(world), refused(world)]
    pass_a_minute(world)
    witness.receive(*receipts)
    honest, bad = witness._answer, receipts[0].entry_hash

    async def lying(request: LedgerRequest) -> LedgerResponse:
        answer = await honest(request)
        ends = [
            msgspec.structs.replace(one, path=[bytes(32)]) if merkle.leaf_hash(one.outcome, _sha256) == bad else one
            for one in answer.ends
        ]
        return LedgerResponse(proofs=answer.proofs, ends=ends)

    witness._answer = lying  # type: ignore[method-assign]
    with pytest.raises(NotProved, match="is not proved to be under entry"):
        await witness.fetch()
    assert witness.count_proved() == {receipts[0].lease: 0, receipts[1].lease: 1}


async def test_what_the_coordinator_does_not_prove_is_asked_for_over_https(world: World, witness: Witness) -> None:
    receipt = accepted(world)
    witness.receive(receipt)
    witness.proves = False
    with pytest.raises(NotProved, match="proves no entry"):
        await witness.fetch()
    witness.https = True
    await witness.fetch(2)
    assert witness.count_proved() == {receipt.lease: 1}


async def test_the_costs_that_weighed_receipts_are_fetched_once(world: World, witness: Witness) -> None:
    world.group_service.costs.take(sealed_costs(), RUN, LEDGER_KEYS, T0)
    entry = world.group_service.costs.now.entry
    receipts = [accepted(world), accepted(world)]
    witness.receive(*receipts)
    await witness.fetch()
    assert [one.entries for one in witness.asked] == [[one.entry for one in receipts], [entry]]
    ((proved, serial),) = witness.store.costs()
    assert serial == ROOT.serial
    assert opened_costs(proved, witness.store.root_of, [ROOT]) == COSTS
    proofs = witness.store.proofs()
    assert all(check_weight(proofs[one.lease], {entry: COSTS}.get) for one in receipts)
    witness.receive(later := accepted(world))
    await witness.fetch(2)
    assert [one.entries for one in witness.asked[2:]] == [[later.entry]]


def close(world: World, epoch: int, stated: int) -> None:
    """Append the close of an epoch, which states the number `stated`."""
    row = ClosedNode(peer_id(ALICE), 7, 10**6, 1, 0, 0, True)
    fact = EpochClosed(epoch=stated, since=1, short=0, binding=False, nodes=[row])
    world.group_service.ledger.append(world.now, "epoch.closed", f"epoch:{epoch}:closed", fact)


async def test_the_close_of_an_epoch_is_fetched_by_its_key_once_there_is_one(world: World, witness: Witness) -> None:
    receipt = msgspec.structs.replace(accepted(world), epoch=4, price=7)
    witness.receive(receipt)
    await witness.fetch()
    assert witness.count_proved() == {receipt.lease: 1}
    assert witness.asked[-1].keys == ["epoch:4:closed"]
    assert witness.store.epochs() == {}
    close(world, 4, 4)
    await witness.fetch(2)
    ((epoch, closed),) = witness.store.epochs().items()
    own = own_epoch(epoch, closed, peer_id(ALICE), witness.store.root_of)
    assert own.row is not None
    assert (own.epoch, own.row.price, own.row.work) == (4, 7, 10**6)
    asked = len(witness.asked)
    await witness.fetch(3)
    assert len(witness.asked) == asked, "nothing is missing"


async def test_epochs_that_never_close_keep_no_other_one_waiting(world: World, witness: Witness) -> None:
    witness.store.want_epochs(range(1, 10))
    close(world, 9, 9)
    accepted(world)
    for number in range(1, 5):
        await witness.fetch(number)
    assert set(witness.store.epochs()) == {9}
    assert max(len(request.keys) for request in witness.asked) <= MOST_KEYS


async def test_an_entry_under_another_key_is_no_close(world: World, witness: Witness) -> None:
    witness.store.want_epochs([4])
    close(world, 5, 4)
    accepted(world)
    await witness.fetch()
    assert witness.store.epochs() == {}
