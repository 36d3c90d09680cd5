"""The open leases in run.sqlite that are overdue, and the one that a node may cover (hedging.py).

The column `overdue` of a lease is the time from which it is. NULL: it is never covered, as its node is not measured,
its class not exact, its task served, hedges are turned off, or it is covered already.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from echo2.coordinator.database.database import Database
from echo2.coordinator.leases.kinds.hedging import HedgeShare, may_have
from echo2.p2p.limits.origin import Origin, unchosen

LOOKED_AT: Final = 16
"""Leases that a request reads, those overdue longest."""
_OVERDUE: Final = (
    "SELECT id, position, attempt, sent, overdue, party FROM leases l WHERE state = 'open' AND era = ? AND version = ?"
    " AND overdue <= ? AND expires > ? AND NOT EXISTS (SELECT 1 FROM leases o WHERE o.position = l.position"
    " AND (o.node = ? OR o.connection = ?)) ORDER BY overdue LIMIT ?"
)


class OverdueLease(NamedTuple):
    """An open lease to cover."""

    id: bytes
    position: int
    attempt: int


class OverdueLeases:
    """The overdue leases of a run. `share`: how many hedges may be given."""

    def __init__(self, database: Database, share: float, entropy: Callable[[int], bytes]) -> None:
        """`share`: of hedges in all leases. `entropy`: n -> n random bytes."""
        self._database = database
        self._entropy = entropy
        self._secret = b""
        self.share = HedgeShare(share)

    def to_cover(self, node: bytes, origin: Origin, era: int, version: int, now: int) -> OverdueLease | None:
        """Return the lease that a proven node may cover, whose position it never had."""
        subnet = unchosen(origin.party)
        if not subnet or not self.share.may():
            return None
        self._secret = self._secret or self._entropy(16)
        rows = self._database.all(_OVERDUE, (era, version, now, now, node, origin.connection, LOOKED_AT))
        for lease, position, attempt, sent, overdue, party in rows:
            elsewhere = unchosen(party) not in ("", subnet)
            if elsewhere and now >= may_have(lease, sent, overdue, subnet, self._secret):
                return OverdueLease(lease, position, attempt)
        return None

    def covered(self, lease: bytes) -> None:
        """Note that a lease is covered, in the caller's transaction."""
        self._database.do("UPDATE leases SET overdue = NULL WHERE id = ?", (lease,))
