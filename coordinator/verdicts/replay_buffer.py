"""The replay buffer: accepted, trainable groups less those that the learner's checkpoint says it has drawn.

THE STALENESS RULE IS GUARANTEED HERE, IN `draw`, AND NOWHERE ELSE: a group may be drawn iff its era is the learner's
and its age, step - version, is at most S (coordinator/learner/age.py). The window of leases and the mark `trainable`
only help.

Rules
1. Groups are drawn by version, oldest first, then in the order of receipt, and never twice. With `by_signal` those of
   the largest signal (coordinator/learner/objective/advantages.py, rule 3) go first, and equal ones by age: S is then
   the hard limit of a group's wait, after DistRL (arXiv 2410.14803). A group that is never drawn was paid like the
   rest.
2. Groups that are too old are shed: neither drawn nor counted as buffered. They are paid all the same.
3. The set of drawn groups belongs to the learner's checkpoint. Here it is kept in memory alone: `rebuild` sets it when
   a learner starts. `draw` adds to it, and drops groups that are too old to be drawn.
4. Groups at which the learner failed are set aside for good, in run.sqlite (`set_aside`). They are neither drawn nor
   counted as buffered or shed, and are paid all the same. `rebuild` does not touch them.
5. A group with equal rewards has no advantage to learn from. It is drawn like the others; with `refill` it is never
   drawn, and another group takes its place.
6. `drawable` has the number of groups that are left, by version. It is counted where a group comes, is drawn or is set
   aside, by triggers in that transaction, and counted anew by `rebuild`: each lease request asks for it, and each
   group that comes while the learner waits.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from echo2.coordinator.accounts.decided import Decided
from echo2.coordinator.database.database import Database
from echo2.coordinator.learner.age import age, oldest_fresh
from echo2.coordinator.learner.objective.advantages import signal_of
from echo2.coordinator.leases.lease_window import CompletedBatch

_LEFT_CONDITION = "lease NOT IN (SELECT lease FROM temp.drawn) AND lease NOT IN (SELECT lease FROM set_aside)"
_WITHIN_CONDITION = "era = ? AND version >= ? AND varied >= ?"
_DRAWABLE_CONDITION = f"{_WITHIN_CONDITION} AND {_LEFT_CONDITION}"


class DrawnGroup(NamedTuple):
    """A group of a batch. `id`: id of its lease, by which the learner reads its tokens
    (coordinator/learner/batches/batch_groups.py)."""

    id: bytes
    version: int


class ReplayBuffer:
    """The replay buffer of a run.

    `staleness`: S. `refill`: leave out groups without variance. `by_signal`: see rule 1. `histogram`: groups drawn,
    indexed by their age."""

    def __init__(self, database: Database, staleness: int, *, refill: bool = False, by_signal: bool = False) -> None:
        self._database = database
        self._staleness = staleness
        self.refill = refill
        self.by_signal = by_signal
        self.histogram = [0] * (staleness + 1)

    def on_decided(self, end: Decided) -> None:
        """Give a trainable group its place, in the transaction of its verdict."""
        group, lease = end.accepted, end.lease
        if group is None or not group.trainable:
            return
        signal = round(1_000_000 * signal_of(group.rewards))
        packed = msgspec.msgpack.encode(group.behaviour)
        row = lease.id, lease.era, lease.version, group.received, group.varied, packed, group.position, signal
        self._database.later("INSERT INTO buffer VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)

    def rebuild(self, drawn: Iterable[bytes], step: int, era: int) -> None:
        """Set the drawn groups to those of the checkpoint that a learner has started from. `step`, `era`: those of that
        checkpoint; no group that is too old for them is drawn from then on."""
        with self._database.transaction():
            self._database.do("DELETE FROM temp.drawable")
            self._database.do("DELETE FROM temp.drawn")
            self._database.do(
                "INSERT INTO temp.drawable SELECT era, version, varied, count(*) FROM buffer"
                " WHERE era = ? AND version >= ? AND lease NOT IN (SELECT lease FROM set_aside)"
                " GROUP BY version, varied",
                (era, oldest_fresh(step, self._staleness)),
            )
            for lease in drawn:
                query = "INSERT OR IGNORE INTO temp.drawn SELECT lease, version FROM buffer WHERE lease = ?"
                self._database.do(query, (lease,))

    def draw(self, step: int, era: int, groups: int, again: Sequence[bytes] = ()) -> list[DrawnGroup] | None:
        """Draw the next batch for the learner at `step`; None while there are fewer than `groups`. No token is read.

        `again`: draw exactly these groups once more; the result is None if one of them may not be drawn now."""
        if not again and self.count_buffered(step, era) < groups:
            return None
        order = ("signal DESC, " if self.by_signal else "") + "version, at, lease"
        only, most = (f" AND lease IN ({', '.join('?' * len(again))})", len(again)) if again else ("", groups)
        rows = self._database.all(
            f"SELECT lease, version FROM buffer WHERE {_DRAWABLE_CONDITION}{only} ORDER BY {order} LIMIT ?",
            (*self._window(step, era), *again, most),
        )
        if len(rows) < most:
            return None
        rows.sort(key=lambda row: row[1])  # a batch names its groups oldest first
        batch = [DrawnGroup(*row) for row in rows]
        with self._database.transaction():
            for table in ("drawable", "drawn"):
                self._database.do(f"DELETE FROM temp.{table} WHERE version < ?", (oldest_fresh(step, self._staleness),))
            for drawn in rows:
                self._database.do("INSERT INTO temp.drawn VALUES (?, ?)", drawn)
        for _, version in rows:
            self.histogram[max(0, age(step, version))] += 1
        return batch

    def next_completion(self, step: int, era: int, groups: int) -> CompletedBatch | None:
        """Return when the next batch became complete, and by which lease; None while it is not, or if nothing is known
        of that lease."""
        if self.count_buffered(step, era) < groups:
            return None
        row = self._database.one(
            "SELECT l.ahead, l.sent, v.at FROM buffer JOIN verdicts v USING (lease) JOIN leases l ON l.id = lease"
            f" WHERE {_DRAWABLE_CONDITION.replace('era', 'buffer.era').replace('version', 'buffer.version')}"
            " ORDER BY v.at LIMIT 1 OFFSET ?",
            (*self._window(step, era), groups - 1),
        )
        return None if row is None or row[0] is None else CompletedBatch(*row)

    def count_buffered(self, step: int, era: int) -> int:
        """Count the groups that may be drawn now."""
        return sum(self.by_version(step, era).values())

    def by_version(self, step: int, era: int) -> dict[int, int]:
        """Count the groups that may be drawn now by version."""
        where = f"{_WITHIN_CONDITION} AND groups > 0"
        query = f"SELECT version, sum(groups) FROM temp.drawable WHERE {where} GROUP BY version"
        return dict(self._database.all(query, self._window(step, era)))

    def flat(self, step: int, era: int) -> int:
        """Count the groups that are left out only because their rewards are all equal (rule 5)."""
        if not self.refill:
            return 0
        query = "SELECT coalesce(sum(groups), 0) FROM temp.drawable WHERE era = ? AND version >= ? AND varied < ?"
        return int(self._database.value(query, self._window(step, era)))

    def set_aside(self, leases: Iterable[bytes], reason: str, now: int) -> None:
        """Exclude groups at which the learner failed from all draws (rule 4)."""
        with self._database.transaction():
            for lease in leases:
                self._database.do("INSERT OR IGNORE INTO set_aside VALUES (?, ?, ?)", (lease, reason, now))

    def batches_aside(self) -> list[tuple[str, int, int]]:
        """Return (reason, when, groups) of each batch that was set aside, oldest first. `when`: ms."""
        query = "SELECT reason, at, count(*) FROM set_aside GROUP BY at, reason ORDER BY at"
        return [(reason, at, groups) for reason, at, groups in self._database.all(query)]

    def _window(self, step: int, era: int) -> tuple[int, int, int]:
        return era, oldest_fresh(step, self._staleness), int(self.refill)
