"""The time in which a node had leases: a union of intervals. Pure. Times in ms.

Rules
1. The interval of a lease is [sent, min(received, expires)]; [sent, expires] where no group was received.
2. Time that several leases share counts once, also where they end in different epochs: parallel leases do not shrink
   it, and a node that asks for little work does not look fast.
3. The newest `KEPT_INTERVALS` intervals of the union are remembered. A lease that began before the oldest of them
   counts from its end on.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

KEPT_INTERVALS: Final = 64


class Interval(msgspec.Struct, frozen=True, array_like=True, order=True, gc=False):
    """A stretch of time. `end`: not before `begin`."""

    begin: int
    end: int

    def __iter__(self) -> Iterator[int]:
        yield self.begin
        yield self.end


def lease_interval(sent: int, received: int | None, expires: int) -> Interval:
    """Return the interval of a lease (rule 1)."""
    end = expires if received is None else min(received, expires)
    return Interval(sent, max(sent, end))


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the union as intervals that do not touch, in order."""
    merged: list[Interval] = []
    for one in sorted(intervals):
        if merged and one.begin <= merged[-1].end:
            merged[-1] = Interval(merged[-1].begin, max(merged[-1].end, one.end))
        elif one.end > one.begin:
            merged.append(one)
    return merged


def extend_intervals(covered: list[Interval], new: Iterable[Interval]) -> tuple[list[Interval], int]:
    """Return the union of `covered`, itself one, with further intervals, and by how much time it has grown (rule 3)."""
    full = len(covered) == KEPT_INTERVALS
    clipped = [Interval(max(one.begin, covered[0].end), one.end) for one in new] if full else list(new)
    kept = [one for one in clipped if one.end > one.begin]
    if not kept:
        return covered, 0
    first = bisect_left(covered, min(one.begin for one in kept), key=lambda one: one.end)
    touched = union([*covered[first:], *kept])
    grown = length(touched) - length(covered[first:])
    return [*covered[:first], *touched][-KEPT_INTERVALS:], grown


def length(intervals: Iterable[Interval]) -> int:
    """Return the time that intervals without overlap cover, in ms."""
    return sum(one.end - one.begin for one in intervals)
