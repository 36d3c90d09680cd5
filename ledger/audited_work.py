"""The audited work of a key: a count of groups that decays, in integers. Pure.

Rules
1. The count is in units of 2^-32 groups. It halves every `HALF_LIFE` hours (half_life.py).
2. It decays at the `at` of the key's next accepted or refused group, never between. Minutes beyond whole hours count at
   the next decay. A clock that was set back changes nothing.
3. Decay takes no key below *known*: a count that has reached `KNOWN_AUDITED_GROUPS` groups stays there.
"""

from typing import Final

from echo2.ledger import half_life

ONE: Final = 1 << 32
"""One group."""
KNOWN_AUDITED_GROUPS: Final = 3
"""Groups."""
PROVEN_AUDITED_GROUPS: Final = 30
"""Groups: some 3 per day keep that up."""
HALF_LIFE: Final = 168
"""Hours."""
HOUR: Final = 3_600_000
"""Milliseconds."""


def decay_count(count: int, since: int, now: int) -> tuple[int, int]:
    """Return a count as it stands at `now`, and until when it has decayed then (rules 1 to 3). `since`: time until
    which it has decayed so far; times in ms."""
    hours = max(0, now - since) // HOUR
    if not hours:
        return count, since
    less = half_life.decay(count, hours, HALF_LIFE)
    return max(less, min(count, KNOWN_AUDITED_GROUPS * ONE)), since + hours * HOUR
