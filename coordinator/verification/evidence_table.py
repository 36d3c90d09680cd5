"""The evidence against each key in run.sqlite, and the data from which a verdict by evidence can be run again.

Rules
1. `bets` has one row per key with an accepted group of a class that is not exact, of one size however many groups
   there were. Keys are free: the evidence from a key's groups before the first accepted one is not kept, since the
   next key would begin without it. So rows cost accepted work. Those of keys that were idle for long go (`forget`).
2. `compared` has one row per such group: its tokens, and the key's evidence before them (empty: none). It goes with the
   group's own tokens (coordinator/rollouts/token_storage.py).
3. Both are written in the transaction of the verdict, so the order of the groups is that of the ledger. The verdict's
   entry states three hashes (SHA-256): of the tokens, and of the key's evidence before and after. The evidence after
   one group is that before the key's next one. So each verdict can be run again alone, and from the first accepted
   group on the entries of a key are a chain (verdict_replay.py).
"""

import hashlib
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from coordinator.database import Database
from coordinator.verification.evidence import IDLE, Conclusion, NodeEvidence, Tables, products, suffices
from coordinator.verification.token_evidence import TOKEN, TokenArray
from coordinator.verification.version_pairs import VersionCount
from runtime.units import DAY

FORGOTTEN_AT_ONCE: Final = 32


class EvidenceHashes(NamedTuple):
    """The hashes in the ledger entry of a verdict by evidence (rule 3), 32 bytes each."""

    tokens: bytes
    before: bytes
    after: bytes


class EvidenceAgain(NamedTuple):
    """The bet on a group, run again. `suffices`: whether its tokens were enough without the rest of the group."""

    after: NodeEvidence
    hashes: EvidenceHashes
    suffices: bool

    def agrees(self, code: str) -> bool:
        """Tell whether a verdict of this code follows."""
        conclusion = self.after.conclusion()
        if code == "evidence":
            return conclusion == "refusal" or self.suffices
        if code == "version-lie":  # refused by its second pass
            return conclusion != "refusal"
        return conclusion == ("doubt" if code == "quarantine" else "honest")


class EvidenceStep(NamedTuple):
    """The evidence against a key after a further group. `stored`: whether it is in the table (rule 1). `versions`: of a
    group that was passed twice (version_pairs.py); `stale`: whether it is refused for that."""

    conclusion: Conclusion
    hashes: EvidenceHashes
    stored: bool
    versions: VersionCount | None = None
    stale: bool = False


class EvidenceTable:
    """The tables `bets` and `compared`. A node is its public key, 32 bytes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, node: bytes) -> NodeEvidence:
        """Return the evidence against a key."""
        return _decoded(self._state(node))

    def _state(self, node: bytes) -> bytes:
        """Return the stored evidence against a key; empty: none."""
        state: bytes | None = self._database.value("SELECT state FROM bets WHERE node = ?", (node,))
        return state or b""

    def take(
        self, node: bytes, lease: bytes, tokens: TokenArray, tables: Tables, now: int, *, refused: bool = False
    ) -> EvidenceStep:
        """Bet on a group whose verdict falls at `now`, ms, in the caller's transaction. `tables`: of the Calibration
        that its lease names. `refused`: whether the group is refused whatever the evidence."""
        old, packed = self._state(node), tokens.tobytes()
        after = _decoded(old).after(products(tokens, tables), now)
        conclusion, new = after.conclusion(), after.encode()
        stored = bool(old) or not (refused or conclusion == "refusal")
        if stored:
            self._database.do("INSERT OR REPLACE INTO bets VALUES (?, ?, ?)", (node, new, after.day))
        self._database.do("INSERT INTO compared VALUES (?, ?, ?)", (lease, packed, old))
        return EvidenceStep(conclusion, EvidenceHashes(_hash(packed), evidence_hash(old), _hash(new)), stored)

    def run_again(self, lease: bytes, tables: Tables, now: int) -> EvidenceAgain | None:
        """Repeat the bet on a group from what was stored with it; None if that was deleted. `now`: as at the verdict.
        The caller compares the result with the ledger's entry."""
        row = self._database.one("SELECT tokens, before FROM compared WHERE lease = ?", (lease,))
        if row is None:
            return None
        packed, old = row
        before, tokens = _decoded(old), np.frombuffer(packed, TOKEN)
        after = before.after(products(tokens, tables), now)
        hashes = EvidenceHashes(_hash(packed), evidence_hash(old), _hash(after.encode()))
        return EvidenceAgain(after, hashes, suffices(before, tokens, tables))

    def run_anew(self, groups: Sequence[tuple[bytes, int]], tables: Tables) -> NodeEvidence | None:
        """Bet on successive groups of one key, given by lease and time of verdict (ms), against other tables than at
        their verdicts. The evidence before the first is that of then. None: a group's tokens were deleted."""
        evidence: NodeEvidence | None = None
        for lease, at in groups:
            row = self._database.one("SELECT tokens, before FROM compared WHERE lease = ?", (lease,))
            if row is None:
                return None
            before = _decoded(row[1]) if evidence is None else evidence
            evidence = before.after(products(np.frombuffer(row[0], TOKEN), tables), at)
        return evidence

    def forget(self, now: int, most: int = FORGOTTEN_AT_ONCE) -> int:
        """Delete at most `most` rows of keys whose evidence no longer counts, because they were idle (evidence.py, rule
        7); return how many."""
        today, gone = now // DAY, 0
        query = "SELECT node, state FROM bets WHERE day <= ? ORDER BY day LIMIT ?"
        for node, state in self._database.all(query, (today - IDLE, most)):
            if _decoded(state).lapsed(today):
                gone += self._database.do("DELETE FROM bets WHERE node = ?", (node,))
            else:  # in doubt: it is looked at again after as long
                self._database.do("UPDATE bets SET day = ? WHERE node = ?", (today, node))
        return gone


def _decoded(state: bytes) -> NodeEvidence:
    return NodeEvidence.decode(state) if state else NodeEvidence()


def evidence_hash(state: bytes) -> bytes:
    """Return the hash of stored evidence; `state` empty: of a key without any."""
    return _hash(state or NodeEvidence().encode())


def _hash(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
