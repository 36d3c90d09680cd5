"""Read all that run.sqlite knows of groups when they are decided, by one statement.

Groups that are decided together are read together. A verdict may change what was read of a group that is decided after
it: if both have one position, or if it was a canary of the same node. Such a group is read again.

Modules that write the tables explain them: leases (lease_table.py), twins (twin_sets.py), submissions, scores
(group_scores.py), shares of room (lease_admission.py), chosen prompts (prompt_window.py), vesting.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from echo2.coordinator.database.database import Database, marks
from echo2.coordinator.leases.lease_rows import LeaseRecord
from echo2.protocol.leases import Lease
from echo2.tasks.task import Score

_QUERY: Final = """
SELECT l.id, l.expires, l.state, v.receipt, s.at, s.hash, coalesce(s.scores, e.scores),
    l.position, l.party, l.twin = 'canary', iif(l.counts, o.share, NULL), c.summary,
    EXISTS (SELECT 1 FROM leases t WHERE t.position = l.position AND t.attempt = l.attempt AND t.id != l.id),
    EXISTS (SELECT 1 FROM buffer b WHERE b.position = l.position AND b.lease != l.id),
    EXISTS (SELECT 1 FROM unvested u WHERE u.node = l.node)
FROM leases l LEFT JOIN verdicts v ON v.lease = l.id LEFT JOIN submissions s ON s.lease = l.id
    LEFT JOIN episode_scores e ON e.lease = l.id LEFT JOIN lent o ON o.lease = l.id
    LEFT JOIN chosen_prompts c ON c.position = l.position
WHERE l.id IN ({})
"""
LEAST_SCORED: Final = 2
"""Rollouts with a reward: an advantage is relative to another one."""
_scores = msgspec.msgpack.Decoder(list[Score | None]).decode


class GroupAtVerdict(NamedTuple):
    """A group before its verdict.

    `receipt`: sealed; None: it is not decided. `at`, `hash`: time and hash of the submission; None: there is none.
    `packed`: its scores, encoded. `share`: share of the room that its lease takes; None: it does not count. `summary`:
    summary from which its position's prompt was chosen. `twins`: 1 if its set has another lease. `spare`: 1 if a twin
    is in the buffer. `owed`: 1 if its node has canaries that are not vested."""

    record: LeaseRecord
    receipt: bytes | None
    at: int | None
    hash: bytes | None
    packed: bytes | None
    position: int
    party: str
    canary: int
    share: str | None
    summary: bytes | None
    twins: int
    spare: int
    owed: int

    def scores(self) -> list[Score | None]:
        """Return a score per rollout, None of one without a finite reward; empty where fewer than `LEAST_SCORED` have
        one: nothing can be learned from the group."""
        scores = [] if self.packed is None else _scores(self.packed)
        return scores if sum(score is not None for score in scores) >= LEAST_SCORED else []


class GroupsAtVerdict:
    """Groups that are decided together, in one transaction."""

    def __init__(self, database: Database, leases: Sequence[Lease]) -> None:
        self._database = database
        self._read = _groups(database, leases)
        self._positions: set[int] = set()
        self._with_canaries: set[bytes] = set()

    def take(self, lease: Lease) -> GroupAtVerdict:
        """Return a group for its verdict, which falls now. Raises `LookupError`: there is no such lease."""
        group = self._read.pop(lease.id, None)
        if group is None or group.position in self._positions or lease.node in self._with_canaries:
            group = _groups(self._database, [lease]).get(lease.id)
        if group is None:
            raise LookupError(f"there is no lease {lease.id.hex()}")
        self._positions.add(group.position)
        if group.canary:
            self._with_canaries.add(lease.node)
        return group


def _groups(database: Database, leases: Sequence[Lease]) -> dict[bytes, GroupAtVerdict]:
    """Return the groups of leases, by the lease's id."""
    of = {lease.id: lease for lease in leases}
    rows = database.all(_QUERY.format(marks(of)), tuple(of))
    return {row[0]: GroupAtVerdict(LeaseRecord(of[row[0]], *row[1:3]), *row[3:]) for row in rows}
