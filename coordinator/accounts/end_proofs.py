"""Prove the ends of leases that have no ledger entry of their own.

Rules
1. The end of a lease is a leaf under the root that an entry `leases.ended` states (coordinator/accounts/lease_ends.py).
   Its proof is its audit path there, beside the proof of that entry.
2. An answer has ends of one entry alone: that of the first lease asked for that has one. The client asks again for the
   others. So a request reads at most one entry's ends, `lease_ends.MOST` of them.
3. The trees of the last `REMEMBERED_TREES` entries are remembered: an entry's ends never change.
"""

import bisect
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from echo2.coordinator.database.database import Database
from echo2.ledger.ledger_entries import sha256
from echo2.p2p.swarm import merkle
from echo2.protocol.ledger_heads import EndProof

REMEMBERED_TREES: Final = 4


class _Ends(NamedTuple):
    """The ends of one entry: their leases, ascending, their encoded LeaseOutcomes, and the tree over these."""

    leases: list[bytes]
    outcomes: list[bytes]
    tree: merkle.Tree


class EndProofs:
    """Proofs over the table `ends`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._remembered: OrderedDict[int, _Ends] = OrderedDict()

    def proofs(self, leases: Sequence[bytes], size: int) -> list[EndProof]:
        """Return the proofs of the ends of leases, in one entry among the first `size` of the ledger (rule 2)."""
        entries = {lease: self._entry(lease) for lease in leases}
        chosen = next((entry for entry in entries.values() if entry is not None and entry <= size), None)
        if chosen is None:
            return []
        ends = self._ends(chosen)
        return [_proof(chosen, lease, ends) for lease, entry in entries.items() if entry == chosen]

    def _entry(self, lease: bytes) -> int | None:
        entry: int | None = self._database.value("SELECT entry FROM ends WHERE lease = ?", (lease,))
        return entry

    def _ends(self, entry: int) -> _Ends:
        """Return the ends of an entry (rule 3)."""
        if entry not in self._remembered:
            rows = self._database.all("SELECT lease, document FROM ends WHERE entry = ? ORDER BY lease", (entry,))
            leases, outcomes = [lease for lease, _ in rows], [document for _, document in rows]
            tree = merkle.Tree.of([merkle.leaf_hash(outcome, sha256) for outcome in outcomes], sha256)
            self._remembered[entry] = _Ends(leases, outcomes, tree)
            if len(self._remembered) > REMEMBERED_TREES:
                self._remembered.popitem(last=False)
        return self._remembered[entry]


def _proof(entry: int, lease: bytes, ends: _Ends) -> EndProof:
    index = bisect.bisect_left(ends.leases, lease)
    return EndProof(entry=entry, index=index, outcome=ends.outcomes[index], path=ends.tree.proof(index))
