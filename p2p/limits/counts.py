"""Counts of what somebody has, without those that have nothing."""

from collections import Counter
from typing import TypeVar

K = TypeVar("K")


def take_one(counts: Counter[K], name: K) -> None:
    """Count one less of `name`, at a cost that does not grow with the names: `Counter`'s own subtraction walks all."""
    counts[name] -= 1
    if counts[name] <= 0:
        del counts[name]
