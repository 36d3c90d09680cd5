"""The evidence by near-ties against each key and party, in run.sqlite.

Rules
1. `near_ties` has one row per key and per party with an accepted group of an exact class. All rows have one size. A
   lapsed row is deleted (`forget`). So every row costs accepted work, and stays as long as its key or party works.
2. A row is written in the transaction of the verdict, whose entry states the count. So the rows follow from the
   ledger's entries in their order and from the parties of leases (verdict_replay.py).
"""

from echo2.coordinator.database.database import Database
from echo2.coordinator.verification.evidence import NodeEvidence
from echo2.coordinator.verification.lapsed_rows import forget_lapsed
from echo2.coordinator.verification.near_ties import FIRST_TIE_EVIDENCE, Blamed, NearTieCount, judge_ties
from echo2.p2p.identity import peer_id


def key_row(node: bytes) -> str:
    """Return the name of a key's row."""
    return f"key:{peer_id(node)}"


def party_row(party: str) -> str:
    """Return the name of a party's row."""
    return f"party:{party}"


class NearTieTable:
    """The table `near_ties`. A node is its public key, 32 bytes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, holder: str) -> NodeEvidence:
        """Return the evidence by near-ties against a key or party."""
        state = self._database.value("SELECT state FROM near_ties WHERE holder = ?", (holder,))
        return FIRST_TIE_EVIDENCE if state is None else NodeEvidence.decode(state)

    def take(self, node: bytes, party: str, count: NearTieCount, now: int) -> Blamed:
        """Count a good group of an exact class, in the transaction of its verdict. Return the code under which it is
        refused, empty if it is not; a refused group is not counted. `party`: party of its lease; empty: one of this
        process has none. `now`: ms."""
        key = key_row(node)
        of_party = self._last(party_row(party)) if party else None
        judged = judge_ties(self._last(key), of_party, count, now)
        if not judged.code:
            self._put(key, judged.key)
        if not judged.code and judged.party is not None:
            self._put(party_row(party), judged.party)
        return judged.code

    def _last(self, holder: str) -> NodeEvidence:
        """Return the evidence for the next group."""
        evidence: NodeEvidence | None = self._database.written.get("near_ties", holder)
        return self.of(holder) if evidence is None else evidence

    def _put(self, holder: str, evidence: NodeEvidence) -> None:
        row = (holder, evidence.encode(), evidence.day)
        self._database.later("INSERT OR REPLACE INTO near_ties VALUES (?, ?, ?)", row)
        self._database.written.put("near_ties", holder, evidence)

    def forget(self, now: int) -> int:
        """Delete some lapsed rows; return how many."""
        gone = forget_lapsed(self._database, "near_ties", "holder", now)
        for holder in gone:
            self._database.written.forget("near_ties", holder)
        return len(gone)
