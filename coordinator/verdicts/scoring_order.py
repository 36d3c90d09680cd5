"""Choose the version whose groups a scorer scores next. Pure; times in milliseconds.

Rules
1. Groups under the version that the scorer has loaded come first: a change of version costs a pass over the whole
   model's file. Then come versions at which no other scorer is at work, so that each has its own; then the nearest
   version with waiting groups; of two equally near versions, the older.
2. Before them come groups that the next draw is the last to take; behind all others, those that are too old for it:
   they are paid for, and the learner does not wait for them.
3. No group waits long because others go first: after `LONGEST_WAIT` the version of the group that has waited longest is
   next. Its groups are then scored together, at most `VISIT_GROUPS`: the more groups wait, the fewer changes of version
   there are per group.
"""

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

LONGEST_WAIT: Final = 30_000
VISIT_GROUPS: Final = 256


class PendingVersion(NamedTuple):
    """A version with waiting groups. `since`: when the first of them was received."""

    era: int
    version: int
    since: int


def next_version(
    waiting: Iterable[PendingVersion], present: int | None, now: int, oldest: int, elsewhere: Collection[int] = ()
) -> PendingVersion | None:
    """Choose the version to score next; None if no group waits. `present`: the version that is loaded. `oldest`: the
    oldest version that the next draw may take. `elsewhere`: versions at which other scorers are at work. Numbers also
    rise across eras, so the difference of two is the number of steps between them."""
    longest = min(waiting := list(waiting), key=lambda one: (one.since, one), default=None)
    if longest is None or now - longest.since >= LONGEST_WAIT:
        return longest

    def rank(one: PendingVersion) -> tuple[int, bool, int, PendingVersion]:
        last, late = one.version == oldest, one.version < oldest
        others = one.version in elsewhere and one.version != present
        return late - last, others, 0 if present is None else abs(one.version - present), one

    return min(waiting, key=rank)
