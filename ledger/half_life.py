"""Decay by half, from a table of integers: of audited work per 168 hours, of a node's throughput per 60 minutes. Pure.

Rules
1. After k whole periods a value is multiplied by row k mod H of the table, over 2^32 and rounded down, and halved k //
   H times. H is the half-life in periods.
2. Row k is the greatest integer n with n^H <= 2^(32 H - k): 2^(32 - k/H), rounded down.
"""

from functools import cache


@cache
def decay_table(half_life: int) -> tuple[int, ...]:
    """Return the numerators over 2^32 (rule 2). `half_life`: periods."""
    return tuple(
        _root(half_life, 1 << (32 * half_life - k), round(2.0 ** (32 - k / half_life))) for k in range(half_life)
    )


def _root(degree: int, power: int, near: int) -> int:
    """Return the greatest integer whose power of `degree` is at most `power`. `near`: an estimate."""
    while near**degree > power:
        near -= 1
    while (near + 1) ** degree <= power:
        near += 1
    return near


def decay(value: int, periods: int, half_life: int) -> int:
    """Return what is left of a value, which is not negative, after whole periods (rule 1)."""
    return (value * decay_table(half_life)[periods % half_life] >> 32) >> (periods // half_life)
