"""The evidence against each key that it computes with the version before its lease's, in run.sqlite.

Rules
1. `version_pairs` has one row per key with a group that was passed twice, of one size. It is written where the key's
   other evidence is stored (evidence_table.py, rule 1), so every row costs accepted work. A lapsed row is deleted.
2. A row is written in the transaction of the verdict, whose entry states the count. So the rows follow from the
   ledger's entries in their order (verdict_replay.py).
"""

from echo2.coordinator.database.database import Database
from echo2.coordinator.verification.evidence import NodeEvidence
from echo2.coordinator.verification.lapsed_rows import forget_lapsed
from echo2.coordinator.verification.version_pairs import FIRST_PAIR_EVIDENCE, VersionCount, after_pass


class VersionPairTable:
    """The table `version_pairs`. A node is its public key, 32 bytes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, node: bytes) -> NodeEvidence:
        """Return the evidence by second passes against a key."""
        state = self._database.value("SELECT state FROM version_pairs WHERE node = ?", (node,))
        return FIRST_PAIR_EVIDENCE if state is None else NodeEvidence.decode(state)

    def refuses(self, node: bytes, count: VersionCount, now: int) -> bool:
        """Tell whether a group is refused, with those before it. `now`: time of its verdict, ms."""
        return after_pass(self.of(node), count, now).conclusion() == "refusal"

    def put(self, node: bytes, count: VersionCount, now: int) -> None:
        """Count a group, in the transaction of its verdict."""
        after = after_pass(self.of(node), count, now)
        row = (node, after.encode(), after.day)
        self._database.do("INSERT OR REPLACE INTO version_pairs VALUES (?, ?, ?)", row)

    def forget(self, now: int) -> int:
        """Delete some lapsed rows; return how many."""
        return len(forget_lapsed(self._database, "version_pairs", "node", now))
