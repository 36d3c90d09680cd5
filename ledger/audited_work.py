"""The audited work of a key: a count of groups that decays, in integers. Pure.

Rules
1. The count is in units of 2^-32 groups. It halves every `HALF_LIFE` hours (half_life.py).
2. An account states what was left at the key's last accepted group, and decays by the next one. Standing follows from
   what is left at the time of the question (standing.py). Minutes beyond whole hours count at the next decay. A clock
   that was set back changes nothing.
3. Decay takes no key below *known* while it works: a count that has reached `KNOWN_AUDITED_GROUPS` groups stays there
   until `IDLE_HOURS` after the last accepted group. Then nothing is left.
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
IDLE_HOURS: Final = 30 * 24
HOUR: Final = 3_600_000
"""Milliseconds."""


def decay_count(count: int, since: int, now: int) -> tuple[int, int]:
    """Return a count as it stands at `now`, and until when it has decayed then (rules 1 to 3). `since`: time until
    which it has decayed so far, 0: it never did, and begins to; times in ms."""
    since = since or now
    hours = max(0, now - since) // HOUR
    left = max(half_life.decay(count, hours, HALF_LIFE), min(count, KNOWN_AUDITED_GROUPS * ONE))
    return left * (hours < IDLE_HOURS), since + hours * HOUR
