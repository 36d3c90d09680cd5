"""A ledger in memory with its tree, signed heads and proofs, as a node sees it."""

import hashlib

import msgspec

from echo2.node.trust.ledger_witness import WitnessedHead
from echo2.p2p.envelope import seal
from echo2.p2p.identity import generate_key, public_bytes
from echo2.p2p.swarm import merkle
from echo2.p2p.swarm.merkle_log import MerkleLog, row
from echo2.p2p.wire_types import encode
from echo2.protocol.authority import RoleKeys, Root
from echo2.protocol.leases import Receipt
from echo2.protocol.ledger_heads import EntryProof, GrownHead, LedgerHead

RUN, LEASE = b"r" * 32, b"lease id 16 byte"
KEY = generate_key()
ROLE = RoleKeys(keys=[public_bytes(KEY)], threshold=1)
CHAIN = [
    Root(
        run=RUN, serial=0, roles=dict.fromkeys(("root", "policy", "channel", "ledger"), ROLE), expires=1 << 50, issued=0
    )
]


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


class Log:
    """A ledger with one entry per number, and its heads."""

    def __init__(self, entries: int, other: int | None = None) -> None:
        """`other`: the number of an entry with another weight."""
        self.rows: list[bytes] = []
        self.entries: list[bytes] = []
        self.hashes = [bytes(32)]
        self.tree = MerkleLog(self.rows.__getitem__, sha256)
        for number in range(1, entries + 1):
            facts = msgspec.msgpack.encode({"lease": LEASE, "weight": number + (number == other)})
            entry = msgspec.msgpack.encode([number, 5, "lease.accepted", f"lease:{number}", [], facts])
            self.rows.append(row(number - 1, merkle.leaf_hash(entry, sha256), self.rows.__getitem__, sha256))
            self.entries.append(entry)
            self.hashes.append(sha256(self.hashes[-1] + entry))

    def head(self, number: int, size: int, before: WitnessedHead | None = None, **changes: object) -> WitnessedHead:
        fields: dict[str, object] = {
            "log": RUN, "number": number, "size": size, "root": self.tree.root(size), "tip": self.hashes[size],
            "issued": number,
            "before": None if before is None else sha256(before.payload),
        }  # fmt: skip
        head = LedgerHead(**fields | changes)  # type: ignore[arg-type]
        return WitnessedHead(head, seal("ledgerhead", RUN, encode(head), KEY))

    def heads_after(self, before: WitnessedHead, one: WitnessedHead) -> GrownHead:
        return GrownHead(sealed=one.sealed, consistency=self.tree.consistency(before.head.size, one.head.size))

    def receipt(self, number: int, **changes: object) -> Receipt:
        fields: dict[str, object] = {
            "run": RUN, "node": b"n" * 32, "lease": LEASE, "era": 1, "version": 1, "submission_hash": bytes(32),
            "verdict": "accepted", "code": "ok", "reason": "", "trainable": True, "weight": number, "entry": number,
            "entry_hash": self.hashes[number], "at": 5,
        }  # fmt: skip
        return Receipt(**fields | changes)  # type: ignore[arg-type]

    def proof(self, number: int, size: int) -> EntryProof:
        return EntryProof(
            entry=number, previous=self.hashes[number - 1], canonical=self.entries[number - 1],
            path=self.tree.inclusion(number - 1, size),
        )  # fmt: skip
