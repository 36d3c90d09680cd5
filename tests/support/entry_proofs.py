"""Proofs of entries under the tree over a list of entries, as the coordinator gives them."""

import hashlib
from collections.abc import Callable, Sequence

from echo2.ledger.ledger_entries import ORIGIN, Entry, canonical
from echo2.node.trust.ledger_witness import ReceiptProof
from echo2.p2p.swarm import merkle
from echo2.protocol.ledger_heads import EntryProof


def proved_under(entries: Sequence[Entry], number: int) -> ReceiptProof:
    """Return the proof of an entry in the tree over all of `entries`."""
    leaves = [_written(entry) for entry in entries]
    before = entries[number - 2].hash if number > 1 else ORIGIN
    path = merkle.proof(leaves, number - 1, _sha256)
    return ReceiptProof(EntryProof(entry=number, previous=before, canonical=leaves[number - 1], path=path), len(leaves))


def root_of(entries: Sequence[Entry]) -> Callable[[int], bytes | None]:
    """Return the roots that a node holds: that of the tree over all of `entries`."""
    leaves = [_written(entry) for entry in entries]
    return {len(leaves): merkle.root(leaves, _sha256)}.get


def _written(entry: Entry) -> bytes:
    return canonical(entry.seq, entry.at, entry.kind, entry.key, entry.postings, entry.facts)


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
