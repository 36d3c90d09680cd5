"""The node as a witness of the ledger: which heads it takes, what proves a fork, and what proves a receipt. Pure.

Rules
1. A head of this run's ledger is signed by the ledger's keys, as a Receipt is (protocol/authority.py). One that a
   revoked key signed counts where a later one that counts names it.
2. The first head is taken as it is. Each later one has the next number, names the head before it, is issued after it,
   and brings the proof that its tree begins with that of the head before it. Nothing else is taken.
3. Two heads that hold by rule 1, with the same number and different content, or with the same size and different roots,
   are a `LedgerFork`: the ledger's key signed two histories. A head without proof is a fault of the peer that sent it.
4. A receipt is proved by its entry: the entry hashes to what the receipt names, states the same lease and weight, and
   is in the tree of a head that was taken.
5. Where the entry tells the group's lengths, its weight must follow from them (protocol/group_weights.py): by the Costs
   of the entry that it names, as soon as this node holds that entry's proof, or by none.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from p2p.errors import P2PError
from p2p.swarm import merkle
from p2p.swarm.merkle_log import verify_consistency
from p2p.wire_types import Count, decode
from protocol.authority import Root, open_kept
from protocol.group_weights import Costs, GroupLengths, group_weight
from protocol.leases import Receipt
from protocol.ledger_heads import EntryProof, GrownHead, LedgerHead


class NotProved(P2PError):
    """A head or an entry without the proof that it needs: the fault of the peer that sent it."""


class LedgerFork(Exception):
    """Two signed heads that contradict each other. `one`, `other`: the sealed documents."""

    def __init__(self, one: "WitnessedHead", other: "WitnessedHead") -> None:
        super().__init__(
            f"the run's ledger key signed two histories: LedgerHead {one.head.number} over {one.head.size} entries "
            f"with the root {one.head.root.hex()[:16]}, and LedgerHead {other.head.number} over {other.head.size} "
            f"with the root {other.head.root.hex()[:16]}"
        )
        self.one, self.other = one, other


class WitnessedHead(NamedTuple):
    """A head whose signature was verified, and its sealed bytes."""

    head: LedgerHead
    sealed: bytes


def opened(
    sealed: bytes, chain: Sequence[Root], run: bytes, stored: int | None = None, *, named: bool = False
) -> WitnessedHead:
    """Verify a head (rule 1). `stored`, `named`: as for `open_kept`. Raises `P2PError`."""
    head = decode(open_kept(sealed, "ledgerhead", chain, stored=stored, named=named), LedgerHead)
    if head.log != run:
        raise NotProved("the LedgerHead is of another run's ledger")
    return WitnessedHead(head, sealed)


def opened_in_order(sealed: Sequence[bytes], chain: Sequence[Root], run: bytes) -> list[WitnessedHead]:
    """Verify heads that follow each other, oldest first (rule 1). Raises `Unproven` where no head vouches for the last
    ones, and another `P2PError` for a false one."""
    heads: list[WitnessedHead] = []
    for one in reversed(sealed):
        named = bool(heads) and heads[-1].head.previous == _sha256(one)
        heads.append(opened(one, chain, run, named=named))
    return heads[::-1]


def check_next(before: WitnessedHead | None, one: WitnessedHead, grown: GrownHead) -> None:
    """Check that a head may be taken after `before` (rule 2). Raises `NotProved`, `LedgerFork`."""
    if before is None:
        return
    check_fork(before, one)
    old, new = before.head, one.head
    if (new.number, new.previous) != (old.number + 1, _sha256(before.sealed)):
        raise NotProved(f"LedgerHead {new.number} does not follow {old.number}")
    if new.issued <= old.issued or not verify_consistency(
        old.size, old.root, new.size, new.root, grown.consistency, _sha256
    ):
        raise NotProved(f"LedgerHead {new.number} is not proved to continue {old.number}")


def check_fork(one: WitnessedHead, other: WitnessedHead) -> None:
    """Raise `LedgerFork` where two heads contradict each other (rule 3)."""
    same_number = one.head.number == other.head.number and one.head != other.head
    same_size = one.head.size == other.head.size and one.head.root != other.head.root
    if same_number or same_size:
        raise LedgerFork(one, other)


class _Outcome(msgspec.Struct):
    """The fields of an entry's facts that a receipt states as well, and those from which the weight follows."""

    lease: bytes
    weight: int
    prompt: Count = 0
    turns: list[list[Count]] = []
    begun: list[Count] = []
    costs: Count = 0


class _CostsSet(msgspec.Struct):
    """The document of a `costs.set`."""

    sealed: bytes


_entry = msgspec.msgpack.Decoder(tuple[int, int, str, str, list[tuple[str, int]], bytes])
_outcome = msgspec.msgpack.Decoder(_Outcome)
_costs_set = msgspec.msgpack.Decoder(_CostsSet)


@dataclass(frozen=True)
class ReceiptProof:
    """What proves a receipt (rule 4). `size`: of the head whose tree the path leads to."""

    proof: EntryProof
    size: int


def check_receipt(receipt: Receipt, proved: ReceiptProof, root_of: Callable[[int], bytes | None]) -> None:
    """Check the proof of a receipt. `root_of`: size of a head that was taken -> its root. Raises `NotProved`."""
    proof = proved.proof
    if _sha256(proof.previous + proof.canonical) != receipt.entry_hash or proof.entry != receipt.entry:
        raise NotProved(f"entry {receipt.entry} is not the one that the Receipt names")
    outcome = _outcome_of(proof)
    if (outcome.lease, outcome.weight) != (receipt.lease, receipt.weight):
        raise NotProved(f"entry {receipt.entry} states another lease or weight than the Receipt")
    _check_place(proved, root_of)


def named_costs(proved: ReceiptProof) -> int:
    """Return the number of the entry by whose Costs a receipt's weight was computed; 0: by none. Raises `NotProved`."""
    return _outcome_of(proved.proof).costs


def opened_costs(
    proved: ReceiptProof, root_of: Callable[[int], bytes | None], chain: Sequence[Root], stored: int | None = None
) -> Costs:
    """Check the proof of a `costs.set`, and return its Costs: the head whose tree has the entry vouches for their key.
    `stored`: as for `open_kept`. Raises `P2PError`."""
    kind, facts = _read(proved.proof)
    _check_place(proved, root_of)
    try:
        sealed = _costs_set.decode(facts).sealed
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise NotProved(f"entry {proved.proof.entry}, a {kind}, has no Costs: {error}") from error
    return decode(open_kept(sealed, "costs", chain, stored=stored, named=True), Costs)


def check_weight(proved: ReceiptProof, costs_of: Callable[[int], Costs | None]) -> bool:
    """Check that the weight of a receipt's entry follows from the group's lengths (rule 5); return whether that can be
    told. `costs_of`: number of a `costs.set` -> its Costs; None: not held. Raises `NotProved`."""
    outcome = _outcome_of(proved.proof)
    costs = costs_of(outcome.costs) if outcome.costs else None
    if outcome.costs >= proved.proof.entry:
        raise NotProved(f"entry {proved.proof.entry} names Costs that came after it")
    if not outcome.turns or (outcome.costs and costs is None):
        return False
    weight = group_weight(costs, GroupLengths(outcome.prompt, outcome.turns, outcome.begun))
    if weight != outcome.weight:
        raise NotProved(f"entry {proved.proof.entry} states the weight {outcome.weight}, its lengths weigh {weight}")
    return True


def _outcome_of(proof: EntryProof) -> _Outcome:
    _, facts = _read(proof)
    try:
        return _outcome.decode(facts)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise NotProved(f"entry {proof.entry} does not decode: {error}") from error


def _read(proof: EntryProof) -> tuple[str, bytes]:
    """Return the kind and the facts of an entry that has the number of its proof. Raises `NotProved`."""
    try:
        seq, _, kind, _, _, facts = _entry.decode(proof.canonical)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise NotProved(f"entry {proof.entry} does not decode: {error}") from error
    if seq != proof.entry:
        raise NotProved(f"entry {seq} stands for entry {proof.entry}")
    return kind, facts


def _check_place(proved: ReceiptProof, root_of: Callable[[int], bytes | None]) -> None:
    proof, root = proved.proof, root_of(proved.size)
    index = proof.entry - 1
    if root is None or not merkle.verify(root, proof.canonical, index, proved.size, proof.path, _sha256):
        raise NotProved(f"entry {proof.entry} is not proved to be under a head of {proved.size} entries")


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
