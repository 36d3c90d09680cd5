"""Under which version the scorer looks at groups next. Pure; times in milliseconds.

Rules
1. What waits under the version that the scorer holds is looked at first: a change of version costs a pass over the
   whole model's file. Then the nearest version that something waits for; of two as near, the older.
2. Nobody waits for long because others are nearer: after `LONGEST_WAIT` the version of the group that has waited
   longest is next. What waits under it is then looked at together, `VISIT` groups at most: the more there is to do, the
   fewer changes a group costs.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

LONGEST_WAIT: Final = 30_000
VISIT: Final = 256


class PendingVersion(NamedTuple):
    """A version that groups wait for. `since`: when the first of them was received."""

    era: int
    version: int
    since: int


def next_version(waiting: Iterable[PendingVersion], present: int | None, now: int) -> PendingVersion | None:
    """The version to look at next, None where nothing waits. `present`: the version held; numbers rise over eras too,
    so that the difference of two tells how many steps lie between them."""
    longest = min(waiting := list(waiting), key=lambda one: (one.since, one), default=None)
    if longest is None or now - longest.since >= LONGEST_WAIT:
        return longest
    return min(waiting, key=lambda one: (0 if present is None else abs(one.version - present), one))
