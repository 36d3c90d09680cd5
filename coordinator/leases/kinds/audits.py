"""Audits: leases of which another node gets a twin, so that a proven node of another party generates the group as well.

Rules
1. Of the leases of training prompts one in 1 / `share` is drawn at random as it is given, whatever its node's rank. The
   draw does not wait for the group: a node that is late, or returns nothing, is audited as often as any other.
2. The twin, of the kind "audit" (twin_sets.py), goes to a proven node that is not slow, of another party and
   connection, that never had the position. It goes out under the version of the drawn lease, in place of the lease
   that the node would get now, or of a refusal for lack of room. So no lease comes later than without audits.
3. A draw whose version is no longer leased before an auditor was found is owed, and a later lease is drawn in its
   place; at most `MOST_OWED` are kept. A drawn lease that ended without an accepted group is dropped.
4. Only exact classes have audits, and no served task. In other classes honest nodes differ in one token of 40, after
   which nothing can be compared, and the scorer's pass bets on every token already
   (docs/adr/0041-groups-generated-again.md).
5. Two groups of a set *agree* if their tokens and turns are equal, and their log-probabilities differ by at most twice
   what the scorer allows: a lie about these alone says nothing of the scorer. A group that agrees with an accepted one
   is accepted without a forward pass (canaries.py, rule 6); by one, where the log-probabilities of the other are no
   longer stored. Its entry states `audited` "rerun". The group of the two that is decided second is compared with the
   first.
6. Groups that differ are both judged by the scorer's pass, each by its own content alone. Nothing follows from the
   difference itself.
7. Groups that agree, of which the scorer's pass refused one, speak against the scorer: another process of it checks
   each refused one again (reviews.py), and a refusal that it does not confirm is reversed.
8. Each group is paid in full, by its own lease; at most one of them is in the buffer. So an audit costs the run a group
   only where both are accepted: keys that bring nothing cause no audit that is not learned from.
9. The Lease does not tell an audit from any other lease. A node that guesses right gains nothing: in both cases each
   token must be the right one. The second Receipt is not trainable, and does not say why.
"""

from typing import Final, NamedTuple

MOST_OWED: Final = 64
"""Draws and debts together: each is a few hundred bytes, and a request looks at those of its version."""
_RANDOM_RANGE: Final = 1 << 32


class DrawnLease(NamedTuple):
    """A lease that was drawn. `party`, `connection`: party and connection of its request."""

    lease: bytes
    position: int
    attempt: int
    era: int
    version: int
    party: str
    connection: str


class AuditDraws:
    """The draws by which leases are audited (rules 1 and 3); in memory alone."""

    def __init__(self, share: float) -> None:
        """`share`: share of all leases of training prompts; 0: there is no audit."""
        self.share = share
        self._drawn: list[DrawnLease] = []
        self._owed = 0

    def draw(self, lease: DrawnLease, entropy: bytes) -> None:
        """Draw whether a lease that was given is audited. `entropy`: 4 random bytes."""
        self._owed += int.from_bytes(entropy) < self.share * _RANDOM_RANGE
        if self._owed and len(self._drawn) < MOST_OWED:
            self._drawn.append(lease)
            self._owed -= 1
        self._owed = min(self._owed, MOST_OWED - len(self._drawn))

    def waiting(self, era: int, version: int) -> list[DrawnLease]:
        """Return the drawn leases of a version, oldest first."""
        return [one for one in self._drawn if (one.era, one.version) == (era, version)]

    def end(self, lease: DrawnLease) -> None:
        """Drop a draw: its lease is audited, or ended without an accepted group."""
        self._drawn.remove(lease)

    def keep(self, era: int, oldest: int) -> None:
        """Turn draws under versions before the `oldest` that is leased into debts (rule 3)."""
        kept = [one for one in self._drawn if one.era == era and one.version >= oldest]
        self._owed += len(self._drawn) - len(kept)
        self._drawn = kept
