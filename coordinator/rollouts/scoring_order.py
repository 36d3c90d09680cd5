"""Choose the version whose groups the scorer scores next. Pure; times in milliseconds.

Rules
1. Groups under the version that the scorer has loaded come first: a change of version costs a pass over the whole
   model's file. Then comes the nearest version with waiting groups; of two equally near versions, the older.
2. No group waits long because other groups are nearer: after `LONGEST_WAIT` the version of the group that has waited
   longest is next. Its groups are then scored together, at most `VISIT`: the more groups wait, the fewer changes of
   version there are per group.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

LONGEST_WAIT: Final = 30_000
VISIT: Final = 256


class PendingVersion(NamedTuple):
    """A version with waiting groups. `since`: when the first of them was received."""

    era: int
    version: int
    since: int


def next_version(waiting: Iterable[PendingVersion], present: int | None, now: int) -> PendingVersion | None:
    """Choose the version to score next; None if no group waits. `present`: the version that is loaded. Numbers also
    rise across eras, so the difference of two is the number of steps between them."""
    longest = min(waiting := list(waiting), key=lambda one: (one.since, one), default=None)
    if longest is None or now - longest.since >= LONGEST_WAIT:
        return longest
    return min(waiting, key=lambda one: (0 if present is None else abs(one.version - present), one))
