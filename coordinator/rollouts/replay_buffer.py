"""The replay buffer: accepted, trainable groups less those that the learner's checkpoint says it has drawn.

THE STALENESS RULE IS GUARANTEED HERE, IN `draw`, AND LOCAL ELSE: a group may be drawn iff its era is the learner's
and its age, step - version, is at most S (coordinator/learner/age.py). Whoever paces
leases or marks groups as trainable only helps.

Rules
1. Oldest version first, then in the order of receipt; never the same group twice.
2. Too old groups are shed: not drawn, not counted as buffered, paid all the same. The newest are never shed.
3. The set of drawn groups is the learner's checkpoint's. Here it lives in memory: `rebuild` sets it at each start of a
   learner, `draw` adds to it and leaves out what is too old to be drawn, and nothing of it is written to run.sqlite.
4. Groups at which the learner failed are set aside, for good and in run.sqlite (`set_aside`): they are not drawn, not
   counted as buffered or shed, paid all the same. That is no drawn set: `rebuild` never touches it.
5. A group in which all rewards are equal teaches nothing. It is drawn like the others; with `refill` it never is, and
   another takes its place.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from coordinator.database import Database
from coordinator.learner.age import age, oldest_fresh

_LEFT = "lease NOT IN (SELECT lease FROM temp.drawn) AND lease NOT IN (SELECT lease FROM set_aside)"
_DRAWABLE = f"era = ? AND version >= ? AND varied >= ? AND {_LEFT}"


class DrawnGroup(NamedTuple):
    """A group of a batch. `id`: of its lease, by which the learner reads its tokens
    (coordinator/learner/batch_groups.py)."""

    id: bytes
    version: int


class ReplayBuffer:
    """`staleness`: S. `refill`: leave groups without variance out. `histogram`: index = age at draw."""

    def __init__(self, database: Database, staleness: int, *, refill: bool = False) -> None:
        self._database = database
        self._staleness = staleness
        self.refill = refill
        self.histogram = [0] * (staleness + 1)

    def rebuild(self, drawn: Iterable[bytes]) -> None:
        """A learner has started from a checkpoint that had drawn these groups."""
        with self._database.transaction():
            self._database.do("DELETE FROM temp.drawn")
            for lease in drawn:
                query = "INSERT OR IGNORE INTO temp.drawn SELECT lease, version FROM buffer WHERE lease = ?"
                self._database.do(query, (lease,))

    def draw(self, step: int, era: int, groups: int, again: Sequence[bytes] = ()) -> list[DrawnGroup] | None:
        """The next batch for the learner at `step`, or None while there are fewer than `groups`. No token is read.

        `again`: these groups, as they were drawn before, and no others; None where one of them may not be drawn now."""
        only, most = (f" AND lease IN ({', '.join('?' * len(again))})", len(again)) if again else ("", groups)
        rows = self._database.all(
            f"SELECT lease, version FROM buffer WHERE {_DRAWABLE}{only} ORDER BY version, at, lease LIMIT ?",
            (*self._window(step, era), *again, most),
        )
        if len(rows) < most:
            return None
        batch = [DrawnGroup(*row) for row in rows]
        with self._database.transaction():
            self._database.do("DELETE FROM temp.drawn WHERE version < ?", (oldest_fresh(step, self._staleness),))
            for drawn in rows:
                self._database.do("INSERT INTO temp.drawn VALUES (?, ?)", drawn)
        for _, version in rows:
            self.histogram[max(0, age(step, version))] += 1
        return batch

    def buffered(self, step: int, era: int) -> int:
        """Groups that may be drawn now."""
        return int(self._database.value(f"SELECT count(*) FROM buffer WHERE {_DRAWABLE}", self._window(step, era)))

    def flat(self, step: int, era: int) -> int:
        """Groups that could be drawn if their rewards were not all equal (rule 5)."""
        if not self.refill:
            return 0
        where = f"era = ? AND version >= ? AND varied < ? AND {_LEFT}"
        return int(self._database.value(f"SELECT count(*) FROM buffer WHERE {where}", self._window(step, era)))

    def set_aside(self, leases: Iterable[bytes], reason: str, now: int) -> None:
        """The learner failed at these groups: never draw them again (rule 4)."""
        with self._database.transaction():
            for lease in leases:
                self._database.do("INSERT OR IGNORE INTO set_aside VALUES (?, ?, ?)", (lease, reason, now))

    def batches_aside(self) -> list[tuple[str, int, int]]:
        """(reason, when, groups) of each batch that was set aside, oldest first."""
        query = "SELECT reason, at, count(*) FROM set_aside GROUP BY at, reason ORDER BY at"
        return [(reason, at, groups) for reason, at, groups in self._database.all(query)]

    def _window(self, step: int, era: int) -> tuple[int, int, int]:
        return era, oldest_fresh(step, self._staleness), int(self.refill)
