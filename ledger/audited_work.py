"""The audited work of a key: a count of groups that decays, in integers. Pure.

Rules
1. The count is in units of 2^-32 groups. It halves every `HALF_LIFE` hours: after k whole hours it is multiplied by row
   k mod `HALF_LIFE` of `table`, over 2^32 and rounded down, and halved k // `HALF_LIFE` times.
2. It decays at the `at` of the key's next accepted or refused group, never between. Minutes beyond whole hours count at
   the next decay. A clock that was set back changes nothing.
3. Decay takes no key below *known*: a count that has reached `KNOWN_AUDITED_GROUPS` groups stays there.
4. Row k of the table is the greatest integer n with n^168 <= 2^(32 x 168 - k): 2^(32 - k/168), rounded down.
"""

from functools import cache
from typing import Final

ONE: Final = 1 << 32
"""One group."""
KNOWN_AUDITED_GROUPS: Final = 3
"""Groups."""
PROVEN_AUDITED_GROUPS: Final = 30
"""Groups: some 3 per day keep that up."""
HALF_LIFE: Final = 168
HOUR: Final = 3_600_000
"""Milliseconds."""


@cache
def table() -> tuple[int, ...]:
    """Return the numerators over 2^32 (rule 4)."""
    return tuple(_root(1 << (32 * HALF_LIFE - hours), round(2.0 ** (32 - hours / HALF_LIFE))) for hours in range(168))


def _root(power: int, near: int) -> int:
    """Return the greatest integer whose `HALF_LIFE`-th power is at most `power`. `near`: an estimate."""
    while near**HALF_LIFE > power:
        near -= 1
    while (near + 1) ** HALF_LIFE <= power:
        near += 1
    return near


def decay_count(count: int, since: int, now: int) -> tuple[int, int]:
    """Return a count as it stands at `now`, and until when it has decayed then (rules 1 to 3). `since`: time until
    which it has decayed so far; times in ms."""
    hours = max(0, now - since) // HOUR
    if not hours:
        return count, since
    less = (count * table()[hours % HALF_LIFE] >> 32) >> (hours // HALF_LIFE)
    return max(less, min(count, KNOWN_AUDITED_GROUPS * ONE)), since + hours * HOUR
