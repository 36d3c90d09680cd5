"""The node as a witness of the ledger: which heads it takes, what proves a fork, and what proves a receipt. Pure.

Rules
1. A head of this run's ledger is signed by the ledger's keys, as a Receipt is (protocol/authority.py). One that a
   revoked key signed counts where a later one that counts names it.
2. The first head is taken as it is. Each later one has the next number, names the head before it
   (protocol/ledger_heads.py, rule 2), is issued after it, and brings the proof that its tree begins with that of the
   head before it. Nothing else is taken.
3. Two heads that hold by rule 1, with the same number and different payloads, or with the same size and different
   roots, are a `LedgerFork`: the ledger's key signed two histories. A head without proof is a fault of the peer that
   sent it.
4. A receipt is proved by its entry: the entry hashes to what the receipt names, states the same lease and weight, and
   is in the tree of a head that was taken.
5. Where the entry tells the group's lengths, its weight must follow from them (protocol/group_weights.py): by the Costs
   of the entry that it names, as soon as this node holds that entry's proof, or by none. And they must be those of the
   group that this node generated: else the run could pay for fewer tokens, by a weight that follows from its lengths.
6. A receipt that names entry 0 is proved by the end of its lease: its leaf is what the receipt names, it states the
   same lease and weight, it is under the root of an entry `leases.ended`, and that entry is in the tree of a head that
   was taken.
7. A receipt is *lost* if the entry of its number, in the tree of a head that was taken, is not the one that it names:
   the ledger was restored from an older copy, or rewritten. The receipt stays a claim.
8. A document of a restored log (protocol/restored_logs.py) is taken if the role root sealed it, it follows the newest
   log that was taken, and its entries continue those of this node's head of the number up to which the copy has heads:
   by a consistency proof, or by the same root. Without such a head there is nothing to compare, and the role root is
   believed alone. The first head of that log also brings the proof that its tree begins with the restored entries.
9. Two documents that hold by rule 8's first words, with the same serial and different payloads, are a fork as well.
   Heads of different logs are none, whatever they say.
10. A fork of heads is settled by a Root that revokes the key of one of both: that head no longer counts by rule 1. The
   newest head taken is in doubt from then on while it does not count either. A thief chooses the number of his head, so
   nothing is in doubt by a number: each other head counts by rule 1, or goes once the newest one has gone.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import msgspec

from echo2.p2p.envelope import decode_unverified
from echo2.p2p.errors import P2PError
from echo2.p2p.swarm import merkle
from echo2.p2p.swarm.merkle_log import verify_consistency
from echo2.p2p.wire_types import Count, decode
from echo2.protocol.authority import Root, Unproven, open_kept, open_log, revoked_keys
from echo2.protocol.group_weights import Costs, GroupLengths, group_weight
from echo2.protocol.leases import Receipt
from echo2.protocol.ledger_heads import EndProof, EntryProof, GrownHead, LedgerHead, Proof, names
from echo2.protocol.restored_logs import KIND as LOG_RESTORED
from echo2.protocol.restored_logs import LogChain, SealedLog
from echo2.runtime.figures import number_of

T = TypeVar("T")


class NotProved(P2PError):
    """A head or an entry without the proof that it needs: the fault of the peer that sent it."""


class LedgerFork(Exception):
    """Two signed heads that contradict each other. `one`, `other`: the sealed documents."""

    one: "WitnessedHead | SealedLog"
    other: "WitnessedHead | SealedLog"

    def __init__(self, one: "WitnessedHead", other: "WitnessedHead") -> None:
        entries = number_of(one.head.size, "entry")
        super().__init__(
            f"the run's ledger key signed two histories: LedgerHead {one.head.number} over {entries} "
            f"with the root {one.head.root.hex()[:16]}, and LedgerHead {other.head.number} over {other.head.size} "
            f"with the root {other.head.root.hex()[:16]}"
        )
        self.one, self.other = one, other


class WitnessedHead(NamedTuple):
    """A head whose signature was verified, and its sealed bytes."""

    head: LedgerHead
    sealed: bytes

    @property
    def payload(self) -> bytes:
        """The bytes that were signed: the same for every copy of the head."""
        return decode_unverified(self.sealed).payload


class TwoLogs(LedgerFork):
    """Two signed documents of restored logs with one serial. `one`, `other`: the sealed documents."""

    def __init__(self, one: SealedLog, other: SealedLog) -> None:
        Exception.__init__(
            self,
            f"the run's root keys signed two documents log.restored {one.document.serial}: {one.id.hex()[:16]} "
            f"restores {number_of(one.document.size, 'entry')}, and {other.id.hex()[:16]} {other.document.size}",
        )
        self.one, self.other = one, other


def open_head(
    sealed: bytes, chain: Sequence[Root], logs: LogChain, stored: int | None = None, *, named: bool = False
) -> WitnessedHead:
    """Verify a head (rule 1). `logs`: that were taken. `stored`, `named`: as for `open_kept`. Raises `P2PError`."""
    head = decode(open_kept(sealed, "ledgerhead", chain, stored=stored, named=named), LedgerHead)
    if logs.serial_of(head.log) is None:
        raise NotProved("the LedgerHead is of another run's ledger, or of a restored log that was not taken")
    return WitnessedHead(head, sealed)


def opened_in_order(sealed: Sequence[bytes], chain: Sequence[Root], logs: LogChain) -> list[WitnessedHead]:
    """Verify heads that follow each other, oldest first (rule 1). Raises `Unproven` where no head vouches for the last
    ones, and another `P2PError` for a false one."""
    heads: list[WitnessedHead] = []
    for one in reversed(sealed):
        named = bool(heads) and names(heads[-1].head, one)
        heads.append(open_head(one, chain, logs, named=named))
    return heads[::-1]


def check_next(before: WitnessedHead | None, one: WitnessedHead, grown: GrownHead, logs: LogChain) -> None:
    """Check that a head may be taken after `before` (rules 2 and 8). Raises `NotProved`, `LedgerFork`."""
    if not logs.admits(one.head):
        raise NotProved(f"LedgerHead {one.head.number} is of a log that ended before it, or of one that began after it")
    if before is None:
        return
    check_fork(before, one)
    old, new = before.head, one.head
    if new.number != old.number + 1 or not names(new, before.sealed):
        raise NotProved(f"LedgerHead {new.number} does not follow {old.number}")
    begun = logs.begun_between(old, new)
    continues = new.issued > old.issued and _continues(old.size, old.root, new.size, new.root, grown.consistency)
    if not continues or (begun and not _continues(begun.size, begun.root, new.size, new.root, grown.restored)):
        raise NotProved(f"LedgerHead {new.number} is not proved to continue {old.number}")


def check_fork(one: WitnessedHead, other: WitnessedHead) -> None:
    """Raise `LedgerFork` where two heads of one log contradict each other (rule 3)."""
    same_number = one.head.number == other.head.number and one.payload != other.payload
    same_size = one.head.size == other.head.size and one.head.root != other.head.root
    if one.head.log == other.head.log and (same_number or same_size):
        raise LedgerFork(one, other)


def is_disowned(sealed: bytes, chain: Sequence[Root]) -> bool:
    """Tell whether a head, which counted once, does so no longer, as a Root revokes its key (rule 10)."""
    envelope = decode_unverified(sealed)
    if envelope.kind != "ledgerhead" or revoked_keys(chain).isdisjoint(one.key for one in envelope.signatures):
        return False
    try:
        open_kept(sealed, "ledgerhead", chain)
    except Unproven:
        return True
    return False


def is_settled(fork: Sequence[bytes], chain: Sequence[Root]) -> bool:
    """Tell whether a fork is settled (rule 10). `fork`: its two sealed documents; none: there is no fork."""
    return any(is_disowned(one, chain) for one in fork)


def check_evidence(
    sealed: Sequence[bytes], chain: Sequence[Root], logs: LogChain, like: Callable[[LedgerHead], list[WitnessedHead]]
) -> None:
    """Verify heads and documents of restored logs that a peer shows as evidence, and compare them with each other and
    with those that were taken (rules 3 and 9). `like`: returns the heads taken that have a head's number or size.
    Raises `LedgerFork` where they contradict each other, `P2PError` where one does not verify."""
    heads: list[WitnessedHead] = []
    for document in sealed:
        if decode_unverified(document).kind == LOG_RESTORED:
            logs = opened_logs([document], chain, logs)
            continue
        one = open_head(document, chain, logs)
        for other in (*like(one.head), *heads):
            check_fork(other, one)
        heads.append(one)


def opened_logs(sealed: Sequence[bytes], chain: Sequence[Root], logs: LogChain) -> LogChain:
    """Verify documents of restored logs, and return the chain with those that follow the logs taken (rules 8 and 9).
    Raises `TwoLogs`, `P2PError`."""
    for document in sealed:
        one = open_log(document, chain)
        serial = one.document.serial
        if serial > logs.serial:
            logs = logs.with_next(one)
        elif logs.logs[serial - 1].id != one.id:
            raise TwoLogs(logs.logs[serial - 1], one)
    return logs


def check_logs(
    begun: Sequence[SealedLog], kept: WitnessedHead | None, dropped: WitnessedHead | None, proof: Proof
) -> None:
    """Check that the last of restored logs continues the heads that a node has (rule 8). `kept`: the newest that all
    these logs have, `dropped`: the first that one of them lacks; None: there is none. Raises `NotProved`."""
    last, least = begun[-1].document, min((one.document for one in begun), key=lambda one: one.number)
    beyond = dropped is None or dropped.head.size > least.size or dropped.head.root == least.root
    reaches = dropped is None or dropped.head.size >= least.size
    continues = kept is None or _continues(kept.head.size, kept.head.root, last.size, last.root, proof)
    if not (reaches and beyond and continues):
        raise NotProved(
            f"log.restored {last.serial} restores {number_of(last.size, 'entry')}, without proof that they continue "
            "the heads that this node has"
        )


def _continues(size: int, root: bytes, later: int, later_root: bytes, proof: Proof) -> bool:
    return verify_consistency(size, root, later, later_root, proof, _sha256)


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


class _LeasesEnded(msgspec.Struct):
    """The fields of an entry `leases.ended` that lead to a lease's end."""

    ends: int
    root: bytes


_entry = msgspec.msgpack.Decoder(tuple[int, int, str, str, list[tuple[str, int]], bytes])
_outcome = msgspec.msgpack.Decoder(_Outcome)
_costs_set = msgspec.msgpack.Decoder(_CostsSet)
_ended = msgspec.msgpack.Decoder(_LeasesEnded)


@dataclass(frozen=True)
class ReceiptProof:
    """Proof of a receipt (rule 4). `size`: size of the head whose tree the path leads to."""

    proof: EntryProof
    size: int


def check_receipt(receipt: Receipt, proved: ReceiptProof, root_of: Callable[[int], bytes | None]) -> None:
    """Check the proof of a receipt. `root_of`: size of a head that was taken -> its root. Raises `NotProved`."""
    proof = proved.proof
    if _hash(proof) != receipt.entry_hash or proof.entry != receipt.entry:
        raise NotProved(f"entry {receipt.entry} is not the one that the Receipt names")
    outcome = _outcome_of(proof)
    if (outcome.lease, outcome.weight) != (receipt.lease, receipt.weight):
        raise NotProved(f"entry {receipt.entry} states another lease or weight than the Receipt")
    _check_entry(proved, root_of)


def named_costs(proved: ReceiptProof) -> int:
    """Return the number of the entry by whose Costs a receipt's weight was computed; 0: by none. Raises `NotProved`."""
    return _outcome_of(proved.proof).costs


def opened_costs(
    proved: ReceiptProof, root_of: Callable[[int], bytes | None], chain: Sequence[Root], stored: int | None = None
) -> Costs:
    """Check the proof of a `costs.set`, and return its Costs: the head whose tree has the entry vouches for their key.
    `stored`: as for `open_kept`. Raises `P2PError`."""
    kind, facts = _read(proved.proof)
    _check_entry(proved, root_of)
    sealed = _decode_untrusted(_costs_set, facts, f"entry {proved.proof.entry}, a {kind}, has no Costs: it").sealed
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
    weight = group_weight(costs, GroupLengths(outcome.prompt, outcome.turns))
    if weight != outcome.weight:
        raise NotProved(f"entry {proved.proof.entry} states the weight {outcome.weight}, its lengths weigh {weight}")
    return True


def check_lengths(proved: ReceiptProof, own: GroupLengths) -> None:
    """Check that the entry of a receipt states the lengths of the node's `own` group, where it states any (rule 5).
    Raises `NotProved`."""
    outcome = _outcome_of(proved.proof)
    if outcome.turns and GroupLengths(outcome.prompt, outcome.turns) != own:
        raise NotProved(f"entry {proved.proof.entry} states other lengths than those of this node's group")


def is_lost(receipt: Receipt, proved: ReceiptProof, root_of: Callable[[int], bytes | None]) -> bool:
    """Tell whether an entry proves that the ledger has something else in a receipt's place (rule 7)."""
    try:
        _read(proved.proof)
        _check_entry(proved, root_of)
    except NotProved:
        return False
    return proved.proof.entry == receipt.entry and _hash(proved.proof) != receipt.entry_hash


@dataclass(frozen=True)
class EndedProof:
    """Proof of a receipt that names entry 0 (rule 6). `entry`: the proof of the entry `leases.ended`."""

    end: EndProof
    entry: ReceiptProof

    @property
    def lease(self) -> bytes:
        """The lease that ended. Raises `NotProved`."""
        return _decode_untrusted(_outcome, self.end.outcome, "the end of a lease").lease


def check_end(receipt: Receipt, proved: EndedProof, root_of: Callable[[int], bytes | None]) -> None:
    """Check the proof of a receipt that names entry 0. Raises `NotProved`."""
    end, proof = proved.end, proved.entry.proof
    outcome = _decode_untrusted(_outcome, end.outcome, "the end of a lease")
    if receipt.entry or merkle.leaf_hash(end.outcome, _sha256) != receipt.entry_hash:
        raise NotProved("the end of the lease is not the one that the Receipt names")
    if (outcome.lease, outcome.weight) != (receipt.lease, receipt.weight):
        raise NotProved("the end of the lease states another lease or weight than the Receipt")
    kind, facts = _read(proof)
    if (proof.entry, kind) != (end.entry, "leases.ended"):
        raise NotProved(f"entry {end.entry} is no entry of ends of leases")
    ended = _decode_untrusted(_ended, facts, f"entry {proof.entry}")
    if not merkle.verify(ended.root, end.outcome, end.index, ended.ends, end.path, _sha256):
        raise NotProved(f"the end of the lease is not proved to be under entry {end.entry}")
    _check_entry(proved.entry, root_of)


class ProvedEntry(NamedTuple):
    """An entry that was proved. `facts`: facts as bytes."""

    seq: int
    at: int
    kind: str
    key: str
    postings: list[tuple[str, int]]
    facts: bytes


def proved_entry(proved: ReceiptProof, root_of: Callable[[int], bytes | None]) -> ProvedEntry:
    """Return an entry that is in the tree of a head that was taken. Raises `NotProved`."""
    proof = proved.proof
    entry = ProvedEntry(*_decode_untrusted(_entry, proof.canonical, f"entry {proof.entry}"))
    if entry.seq != proof.entry:
        raise NotProved(f"entry {entry.seq} stands for entry {proof.entry}")
    _check_entry(proved, root_of)
    return entry


def _hash(proof: EntryProof) -> bytes:
    """Return the entry's hash in the ledger's chain."""
    return _sha256(proof.previous + proof.canonical)


def _outcome_of(proof: EntryProof) -> _Outcome:
    _, facts = _read(proof)
    return _decode_untrusted(_outcome, facts, f"entry {proof.entry}")


def _read(proof: EntryProof) -> tuple[str, bytes]:
    """Return the kind and the facts of an entry that has the number of its proof. Raises `NotProved`."""
    seq, _, kind, _, _, facts = _decode_untrusted(_entry, proof.canonical, f"entry {proof.entry}")
    if seq != proof.entry:
        raise NotProved(f"entry {seq} stands for entry {proof.entry}")
    return kind, facts


def _check_entry(proved: ReceiptProof, root_of: Callable[[int], bytes | None]) -> None:
    """Check that an entry is in the tree of a head that was taken. Raises `NotProved`."""
    proof, root = proved.proof, root_of(proved.size)
    index = proof.entry - 1
    if root is None or not merkle.verify(root, proof.canonical, index, proved.size, proof.path, _sha256):
        raise NotProved(f"entry {proof.entry} is not proved to be under a head of {number_of(proved.size, 'entry')}")


def _decode_untrusted(decoder: "msgspec.msgpack.Decoder[T]", data: bytes, what: str) -> T:
    """Decode untrusted bytes. Raises `NotProved`."""
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise NotProved(f"{what} does not decode: {error}") from error


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
