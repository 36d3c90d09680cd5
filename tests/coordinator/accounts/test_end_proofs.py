"""Proofs of ends of leases without an entry: what the coordinator answers, and what a node takes for a proof."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import pytest

from echo2.coordinator.accounts.end_proofs import EndProofs
from echo2.coordinator.accounts.head_signing import LedgerHeads
from echo2.coordinator.accounts.lease_ends import ENDS_KEPT_MS, ENTRY_DUE_MS
from echo2.node.trust.ledger_witness import EndedProof, NotProved, ReceiptProof, check_end
from echo2.protocol.leases import Receipt
from echo2.protocol.ledger_heads import EndProof
from tests.support.group_world import ALICE, BOB, RUN, World, group


@dataclass
class Ended:
    """Receipts of refused groups of new keys, and the proofs of their ends."""

    world: World
    receipts: list[Receipt]

    @property
    def size(self) -> int:
        return self.world.group_service.ledger.tip().entries

    def proofs(self, receipts: Sequence[Receipt], size: int | None = None) -> list[EndProof]:
        proofs = EndProofs(self.world.group_service.database)
        return proofs.proofs([one.lease for one in receipts], self.size if size is None else size)

    def of(self, receipt: Receipt) -> EndedProof:
        (end,) = self.proofs([receipt])
        service = self.world.group_service
        heads = LedgerHeads(
            service.database, service.ledger, RUN, lambda kind, data: data, lambda head, text: text, every=1
        )
        proof = heads.proof(end.entry, self.size)
        assert proof is not None
        return EndedProof(end, ReceiptProof(proof, self.size))

    def root_of(self, size: int) -> bytes | None:
        return self.world.group_service.ledger.tree.root(size) if size == self.size else None


@pytest.fixture
def ended(world: World) -> Ended:
    receipts = [world.refused(group(world.lease(node), rollouts=[]), node) for node in (ALICE, BOB, ALICE)]
    world.now += ENTRY_DUE_MS
    world.group_service.tick(world.now)
    return Ended(world, receipts)


def test_each_receipt_of_an_entry_of_ends_is_proved(ended: Ended) -> None:
    assert len(ended.proofs(ended.receipts)) == 3
    for receipt in ended.receipts:
        assert receipt.entry == 0
        check_end(receipt, ended.of(receipt), ended.root_of)


def test_an_answer_has_the_ends_of_one_entry(ended: Ended) -> None:
    world = ended.world
    later = world.refused(group(world.lease(BOB), rollouts=[]), BOB)
    assert ended.proofs([later]) == []
    world.now += ENTRY_DUE_MS
    world.group_service.tick(world.now)
    assert {end.entry for end in ended.proofs([later, *ended.receipts])} == {ended.size}
    assert len(ended.proofs([*ended.receipts, later])) == 3
    assert ended.proofs([later], size=ended.size - 1) == []


def test_unknown_leases_and_ends_older_than_the_window_have_no_proof(ended: Ended) -> None:
    unknown = msgspec.structs.replace(ended.receipts[0], lease=b"an unknown lease")
    assert ended.proofs([unknown]) == []
    ended.world.now += ENDS_KEPT_MS + 1
    ended.world.group_service.tick(ended.world.now)
    assert ended.proofs(ended.receipts) == []


def _changed(proof: EndedProof, **changes: object) -> EndedProof:
    return EndedProof(msgspec.structs.replace(proof.end, **changes), proof.entry)  # type: ignore[arg-type]


def _proves(ended: Ended, receipt: Receipt, proof: EndedProof) -> bool:
    try:
        check_end(receipt, proof, ended.root_of)
    except NotProved:
        return False
    return True


def test_a_receipt_is_not_proved_by_anything_else(ended: Ended) -> None:
    receipt, other = ended.receipts[0], ended.receipts[1]
    proof = ended.of(receipt)
    canonical = msgspec.structs.replace(proof.entry.proof, canonical=b"\xc1")
    bad = {
        "the end of another lease": (receipt, ended.of(other)),
        "a receipt of another weight": (msgspec.structs.replace(receipt, weight=1), proof),
        "a receipt that names an entry": (msgspec.structs.replace(receipt, entry=1), proof),
        "an outcome that does not decode": (receipt, _changed(proof, outcome=b"\xc1")),
        "another index": (receipt, _changed(proof, index=2 - proof.end.index)),
        "an index beyond the ends": (receipt, _changed(proof, index=1 << 40)),
        "a path cut short": (receipt, _changed(proof, path=proof.end.path[:-1])),
        "another entry": (receipt, _changed(proof, entry=proof.end.entry + 1)),
        "an entry that does not decode": (receipt, EndedProof(proof.end, ReceiptProof(canonical, ended.size))),
        "a head that was not taken": (receipt, EndedProof(proof.end, ReceiptProof(proof.entry.proof, 99))),
    }
    assert [why for why, (receipt, shown) in bad.items() if _proves(ended, receipt, shown)] == []
