"""Decay by half per hour of leased time, from a table of integers. Pure.

Rules
1. After k whole minutes a value is multiplied by row k mod 60 of `table`, over 2^32 and rounded down, and halved k //
   60 times.
2. Row k is the greatest integer n with n^60 <= 2^(32 x 60 - k): 2^(32 - k/60), rounded down.
"""

from functools import cache
from typing import Final

HALF_LIFE: Final = 60
"""Minutes."""


@cache
def table() -> tuple[int, ...]:
    """Return the numerators over 2^32 (rule 2)."""
    return tuple(
        _root(1 << (32 * HALF_LIFE - minutes), round(2.0 ** (32 - minutes / HALF_LIFE))) for minutes in range(HALF_LIFE)
    )


def _root(power: int, near: int) -> int:
    """Return the greatest integer whose `HALF_LIFE`-th power is at most `power`. `near`: an estimate."""
    while near**HALF_LIFE > power:
        near -= 1
    while (near + 1) ** HALF_LIFE <= power:
        near += 1
    return near


def decay_value(value: int, minutes: int) -> int:
    """Return what is left of `value`, which is not negative, after whole minutes (rule 1)."""
    return (value * table()[minutes % HALF_LIFE] >> 32) >> (minutes // HALF_LIFE)
