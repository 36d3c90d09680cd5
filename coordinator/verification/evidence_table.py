"""The evidence against each key in run.sqlite, and what a verdict by it can be run again from.

Rules
1. `bets` has one row per key with a group of a class that is not exact, of one size however many groups there were.
2. `compared` has one row per such group: its tokens, and the key's evidence before them. It goes with the group's own
   tokens (coordinator/rollouts/token_storage.py).
3. Both are written in the transaction of the verdict, so the order of the groups is that of the ledger. The verdict's
   entry states three hashes (SHA-256): of the tokens, and of the key's evidence before and after. The evidence after
   one group is that before the key's next one: so a verdict is run again alone, and the entries of a key are a chain.
"""

import hashlib
from typing import NamedTuple

import numpy as np

from coordinator.database import Database
from coordinator.verification.evidence import Conclusion, NodeEvidence, Tables, products
from coordinator.verification.token_evidence import TOKEN, TokenArray


class EvidenceHashes(NamedTuple):
    """The hashes in the ledger entry of a verdict by evidence (rule 3), 32 bytes each."""

    tokens: bytes
    before: bytes
    after: bytes


class EvidenceStep(NamedTuple):
    """The evidence against a key after a further group."""

    conclusion: Conclusion
    hashes: EvidenceHashes


class EvidenceTable:
    """The tables `bets` and `compared`. A node is its public key, 32 bytes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, node: bytes) -> NodeEvidence:
        """Return the evidence against a key."""
        state = self._database.value("SELECT state FROM bets WHERE node = ?", (node,))
        return NodeEvidence() if state is None else NodeEvidence.decode(state)

    def take(self, node: bytes, lease: bytes, tokens: TokenArray, tables: Tables, now: int) -> EvidenceStep:
        """Bet on a group whose verdict falls at `now`, ms, in the caller's transaction. `tables`: of the Calibration
        that its lease names."""
        before = self.of(node)
        after = before.after(products(tokens, tables), now)
        packed, old, new = tokens.tobytes(), before.encode(), after.encode()
        self._database.do("INSERT OR REPLACE INTO bets VALUES (?, ?)", (node, new))
        self._database.do("INSERT INTO compared VALUES (?, ?, ?)", (lease, packed, old))
        return EvidenceStep(after.conclusion(), EvidenceHashes(_hash(packed), _hash(old), _hash(new)))

    def run_again(self, lease: bytes, tables: Tables, now: int) -> EvidenceStep | None:
        """Repeat the bet on a group from what was stored with it; None if that was deleted. `now`: as at the verdict.
        The caller compares the result with the ledger's entry."""
        row = self._database.one("SELECT tokens, before FROM compared WHERE lease = ?", (lease,))
        if row is None:
            return None
        packed, old = row
        after = NodeEvidence.decode(old).after(products(np.frombuffer(packed, TOKEN), tables), now)
        return EvidenceStep(after.conclusion(), EvidenceHashes(_hash(packed), _hash(old), _hash(after.encode())))


def _hash(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
