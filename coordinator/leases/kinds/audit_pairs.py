"""The sets of audited leases in run.sqlite: which lease a node may audit, and the other group of a pair (audits.py)."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from echo2.coordinator.database.database import Database
from echo2.coordinator.leases.kinds.audits import AuditDraws, DrawnLease
from echo2.coordinator.leases.kinds.canaries import KnownAnswer
from echo2.coordinator.leases.kinds.canary_answers import answer_of_group
from echo2.coordinator.verification.submitted_group import ClaimedRollout, decode_stored_group
from echo2.coordinator.verification.verification import EXACT_THRESHOLDS
from echo2.engines.process.messages import floats
from echo2.p2p.limits.origin import Origin

AUDITS_GIVEN: Final = "audits given"
AUDITS_AGREED: Final = "audits agreed"
AUDITS_DIFFERED: Final = "audits differed"
AUDITS_DOUBTING_SCORER: Final = "audits that doubt the scorer"
AUDIT_WORK: Final = "work of audits"
"""Names of tallies (coordinator/metrics/audit_counts.py)."""
_PAIR: Final = (
    " FROM leases c JOIN leases l ON l.position = c.position AND l.attempt = c.attempt AND l.id != c.id"
    " AND 'audit' IN (c.twin, l.twin) AND 'canary' NOT IN (c.twin, l.twin)"
    " JOIN submissions s ON s.lease = l.id JOIN verdicts v ON v.lease = l.id"
)
_ANSWER: Final = (
    f"SELECT s.payload, b.behaviour, e.facts {_PAIR} JOIN buffer b ON b.lease = l.id JOIN entries e ON e.seq = v.entry"
    " WHERE c.id = ? AND s.payload IS NOT NULL AND b.behaviour IS NOT NULL LIMIT 1"
)
_OTHER_GROUP_QUERY: Final = (
    f"SELECT l.id, v.verdict = 'accepted', v.code, s.payload {_PAIR} WHERE c.id = ? AND s.payload IS NOT NULL"
    " ORDER BY v.verdict != 'accepted', v.rowid LIMIT 1"
)


class OtherGroup(NamedTuple):
    """The decided group that another node returned for an audited lease. `code`: code of its verdict."""

    lease: bytes
    accepted: bool
    code: str
    payload: bytes

    def agrees(self, rollouts: Sequence[ClaimedRollout]) -> bool:
        """Tell whether its tokens, turns and log-probabilities are those of `rollouts` (audits.py, rule 5)."""
        own = decode_stored_group(self.payload).rollouts
        return len(own) == len(rollouts) and all(
            one.turns == other.turns
            and np.array_equal(one.tokens, other.tokens)
            and _alike(floats(one.logprobs), floats(other.logprobs))
            for one, other in zip(own, rollouts, strict=True)
        )


def _alike(one: NDArray[np.float32], other: NDArray[np.float32]) -> bool:
    """Tell whether two claims of log-probabilities may both lie within the scorer's bounds."""
    if one.shape != other.shape:
        return False
    off = np.abs(one - other)
    return not len(off) or bool(
        np.max(off) <= 2 * EXACT_THRESHOLDS.drift_most and np.median(off) <= 2 * EXACT_THRESHOLDS.drift_median
    )


class AuditPairs:
    """The audited leases of a run. Use from the thread of the database."""

    def __init__(self, database: Database, share: float, entropy: Callable[[int], bytes]) -> None:
        """`share`: share of audits in all leases. `entropy`: n -> n random bytes."""
        self._database = database
        self._entropy = entropy
        self.draws = AuditDraws(share)

    def on_grant(self, lease: bytes, position: int, attempt: int, under: tuple[int, int], origin: Origin) -> None:
        """Draw whether a lease that was given is audited. `under`: its (era, version)."""
        if self.draws.share:
            drawn = DrawnLease(lease, position, attempt, *under, origin.party, origin.connection)
            self.draws.draw(drawn, self._entropy(4))

    def to_audit(self, node: bytes, origin: Origin, era: int, version: int) -> DrawnLease | None:
        """Return the drawn lease of which a proven node may get a twin (audits.py, rule 2); None: there is none."""
        for one in self.draws.waiting(era, version):
            if not self._is_of_use(one):
                self.draws.end(one)
            elif self._is_elsewhere(one, origin) and not self._had(one, node, origin):
                return one
        return None

    def _is_of_use(self, drawn: DrawnLease) -> bool:
        """Tell whether a drawn lease is open, waits for its verdict, or was accepted."""
        query = (
            "SELECT l.state IN ('open', 'received') OR v.verdict = 'accepted' FROM leases l"
            " LEFT JOIN verdicts v ON v.lease = l.id WHERE l.id = ?"
        )
        return bool(self._database.value(query, (drawn.lease,)))

    def _is_elsewhere(self, drawn: DrawnLease, origin: Origin) -> bool:
        return (drawn.party == "" or drawn.party != origin.party) and (
            drawn.connection == "" or drawn.connection != origin.connection
        )

    def _had(self, drawn: DrawnLease, node: bytes, origin: Origin) -> bool:
        """Tell whether a node, or its connection, ever had a lease of the position."""
        query = (
            "SELECT 1 FROM leases WHERE position = ? AND (node = ? OR (connection != '' AND connection = ?)"
            " OR (attempt = ? AND twin = 'audit')) LIMIT 1"
        )
        row = self._database.one(query, (drawn.position, node, origin.connection, drawn.attempt))
        return row is not None

    def answer_of(self, lease: bytes) -> KnownAnswer | None:
        """Return the accepted group of another node for this lease, as an answer; None: there is none that can be
        compared without a pass."""
        row = self._database.one(_ANSWER, (lease,))
        return None if row is None else answer_of_group(*row)

    def other(self, lease: bytes) -> OtherGroup | None:
        """Return the decided group of another node for an audited lease, an accepted one first; None: there is none, or
        its tokens are no longer stored."""
        row = self._database.one(_OTHER_GROUP_QUERY, (lease,))
        return None if row is None else OtherGroup(row[0], bool(row[1]), *row[2:])

    def count(self, what: str, by: int = 1) -> None:
        """Add to a tally."""
        query = "INSERT INTO tallies VALUES (?, ?) ON CONFLICT DO UPDATE SET value = value + excluded.value"
        self._database.do(query, (what, by))
