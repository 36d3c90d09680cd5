"""The replay buffer: accepted, trainable groups less those that the learner's checkpoint says it has drawn.

THE STALENESS RULE IS GUARANTEED HERE, IN `draw`, AND NOWHERE ELSE: a group may be drawn iff its era is the learner's
and step - version <= S, where `step` is the learner's step before the batch (the batch makes step + 1). Whoever paces
leases or marks groups as trainable only helps.

Rules
1. Oldest version first, then in the order of receipt; never the same group twice.
2. Too old groups are shed: not drawn, not counted as buffered, paid all the same. The newest are never shed.
3. The set of drawn groups is the learner's checkpoint's. Here it lives in memory: `rebuild` sets it at each start of a
   learner, `draw` adds to it, and nothing of it is written to run.sqlite.
4. A group in which all rewards are equal teaches nothing. It is drawn like the others; with `refill` it never is, and
   another takes its place.
"""

from collections.abc import Iterable
from typing import NamedTuple

from coordinator.database import Database

_DRAWABLE = "era = ? AND version >= ? AND varied >= ? AND lease NOT IN temp.drawn"


class Drawn(NamedTuple):
    """A group of a batch. `id`: of its lease, by which the learner reads its tokens (coordinator/learner/groups.py)."""

    id: bytes
    version: int


class Buffer:
    """`staleness`: S. `refill`: leave groups without variance out. `histogram`: index = step - version at draw."""

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
                self._database.do("INSERT OR IGNORE INTO temp.drawn VALUES (?)", (lease,))

    def draw(self, step: int, era: int, groups: int) -> list[Drawn] | None:
        """The next batch for the learner at `step`, or None while there are fewer than `groups`. No token is read."""
        order = "ORDER BY version, at, lease LIMIT ?"
        rows = self._database.all(
            f"SELECT lease, version FROM buffer WHERE {_DRAWABLE} {order}", (*self._window(step, era), groups)
        )
        if len(rows) < groups:
            return None
        batch = [Drawn(*row) for row in rows]
        with self._database.transaction():
            for lease, _ in rows:
                self._database.do("INSERT INTO temp.drawn VALUES (?)", (lease,))
        for _, version in rows:
            self.histogram[max(0, step - version)] += 1
        return batch

    def buffered(self, step: int, era: int) -> int:
        """Groups that may be drawn now."""
        return int(self._database.value(f"SELECT count(*) FROM buffer WHERE {_DRAWABLE}", self._window(step, era)))

    def shed(self, step: int, era: int) -> int:
        """Groups of this era that were trainable once and became too old undrawn."""
        where = "era = ? AND version < ? AND varied >= ? AND lease NOT IN temp.drawn"
        return int(self._database.value(f"SELECT count(*) FROM buffer WHERE {where}", self._window(step, era)))

    def _window(self, step: int, era: int) -> tuple[int, int, int]:
        return era, step - self._staleness, int(self.refill)

    def drop_payloads(self, covered: Iterable[bytes], step: int, era: int, received_before: int) -> int:
        """Forget the tokens of groups that nobody needs any more; how many.

        `covered`, `step`: the draws and the step of a *durable* checkpoint. A group's tokens go once its receipt is
        confirmed, its challenge window is over (received before this time, ms), and it was drawn before the checkpoint
        or can never be drawn after it."""
        with self._database.transaction():
            self._database.do("CREATE TEMP TABLE covered (lease BLOB PRIMARY KEY)")
            for lease in covered:
                self._database.do("INSERT OR IGNORE INTO temp.covered VALUES (?)", (lease,))
            waiting = "SELECT lease FROM buffer WHERE era >= ? AND version >= ? AND lease NOT IN temp.covered"
            dropped = self._database.do(
                "UPDATE submissions SET payload = NULL WHERE payload IS NOT NULL AND at < ?"
                " AND lease IN (SELECT lease FROM verdicts WHERE confirmed = 1)"
                f" AND lease NOT IN ({waiting})",
                (received_before, era, step - self._staleness),
            )
            self._database.do("DROP TABLE temp.covered")
        return dropped
