"""The replay buffer: accepted, trainable groups less those that the learner's checkpoint says it has drawn.

THE STALENESS RULE IS GUARANTEED HERE, IN `draw`, AND NOWHERE ELSE: a group may be drawn iff its era is the learner's
and its age, step - version, is at most S (coordinator/rollouts/age.py). Whoever paces
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

import contextlib
import itertools
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from coordinator.database import Database
from coordinator.rollouts.age import age, oldest_fresh

SLICE: Final = 32
SLICE_BYTES: Final = 2 << 20
"""Groups whose tokens are forgotten in one transaction, and bytes of their submissions, where that is more than one
group: few enough that nothing else waits for it."""
_LEFT = "lease NOT IN (SELECT lease FROM temp.drawn) AND lease NOT IN (SELECT lease FROM set_aside)"
_DRAWABLE = f"era = ? AND version >= ? AND varied >= ? AND {_LEFT}"


class Drawn(NamedTuple):
    """A group of a batch. `id`: of its lease, by which the learner reads its tokens (coordinator/learner/groups.py)."""

    id: bytes
    version: int


class Buffer:
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

    def draw(self, step: int, era: int, groups: int, again: Sequence[bytes] = ()) -> list[Drawn] | None:
        """The next batch for the learner at `step`, or None while there are fewer than `groups`. No token is read.

        `again`: these groups, as they were drawn before, and no others; None where one of them may not be drawn now."""
        only, most = (f" AND lease IN ({', '.join('?' * len(again))})", len(again)) if again else ("", groups)
        rows = self._database.all(
            f"SELECT lease, version FROM buffer WHERE {_DRAWABLE}{only} ORDER BY version, at, lease LIMIT ?",
            (*self._window(step, era), *again, most),
        )
        if len(rows) < most:
            return None
        batch = [Drawn(*row) for row in rows]
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

    def drop_payloads(
        self, covered: Iterable[bytes], step: int, era: int, received_before: int, most: int = SLICE
    ) -> int:
        """Forget the tokens of at most `most` groups, and `SLICE_BYTES`, that nobody needs any more, the oldest first;
        how many groups.

        `covered`, `step`: the draws and the step of a *durable* checkpoint. A group's tokens go once its receipt is
        confirmed, its challenge window is over (received before this time, ms), and it was drawn before the checkpoint
        or can never be drawn after it (too old, or set aside). The table `spent` holds the confirmed groups that still
        have tokens: a call reads those that go, and besides them only those that the buffer still waits with."""
        drawn, oldest = set(covered), oldest_fresh(step, self._staleness)
        query = (
            "SELECT s.at, s.lease, b.era, b.version, a.lease FROM spent s LEFT JOIN buffer b ON b.lease = s.lease"
            " LEFT JOIN set_aside a ON a.lease = s.lease WHERE s.at < ? ORDER BY s.at"
        )
        with contextlib.closing(self._database.each(query, (received_before,))) as spent:
            gone = (
                (at, lease)
                for at, lease, born, version, aside in spent
                if born is None or born < era or version < oldest or lease in drawn or aside is not None
            )
            rows = list(itertools.islice(gone, most))
        forgotten = nbytes = 0
        with self._database.transaction():
            for at, lease in rows:
                nbytes += self._database.value("SELECT length(payload) FROM submissions WHERE lease = ?", (lease,)) or 0
                if forgotten and nbytes > SLICE_BYTES:
                    break
                self._database.do("UPDATE submissions SET payload = NULL WHERE lease = ?", (lease,))
                self._database.do("UPDATE buffer SET behaviour = NULL WHERE lease = ?", (lease,))
                self._database.do("DELETE FROM spent WHERE at = ? AND lease = ?", (at, lease))
                forgotten += 1
        return forgotten
