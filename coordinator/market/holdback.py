"""Pay that is not yet the node's for good: vesting, holdback, and what a reversal can take. Pure.

Each closed epoch in which a node earned makes a tranche. Amounts in nano units, work in milli-RE, times in ms.

Rules
1. `UNVESTED_SHARE` of an epoch's pay, rounded down, goes to the account `unvested`, the rest to `accrued`. The unvested
   part moves to `accrued` in equal measure over `VESTING_MS`, at each close of an epoch.
2. Held back is what went to `accrued` at once for the node's newest `HOLDBACK` of paid work that is younger than
   `VESTING_MS`, less what was forfeited of it. The share of an epoch that lies within is rounded up. The rest is
   released to `payable` at each close.
3. Nothing is released while the node is on probation (throughput.py, rule 6).
4. A forfeit takes from the newest tranche first, and of each the unvested part first, then what is held back. It never
   takes what is payable, nor what is due to be released; the amount that it lacks is stated, and nobody owes it.
5. Forfeits go to the account `forfeit`, and from there to the budget of a later epoch (epochs.py, rule 5).
6. Tranches older than `VESTING_MS` are merged to one; without amounts they are dropped. So a node has at most one more
   tranche than epochs close in that time.
7. The tranches of a replaced key join those of its successor in the order of their closes, of one close its own first.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Final, NamedTuple

import msgspec

from echo2.runtime.units import DAY

UNVESTED_SHARE: Final = Fraction(1, 5)
VESTING_MS: Final = DAY
HOLDBACK: Final = 40_000


class Tranche(msgspec.Struct, frozen=True, array_like=True, order=True, gc=False):
    """Pay of one epoch. `closed`: when it closed. `work`: that was paid. `unvested`: not yet vested, of what will have
    vested evenly from `since` on. `accrued`: vested, and not released. `at_once`: that was accrued from the start.
    `taken`: forfeited of what was accrued.

    A run of many nodes has millions in a day, each of numbers alone: the garbage collector does not look at them."""

    closed: int
    work: int
    unvested: int
    since: int
    accrued: int
    at_once: int
    taken: int = 0

    def __iter__(self) -> Iterator[int]:
        return iter(msgspec.structs.astuple(self))

    @property
    def amount(self) -> int:
        return self.unvested + self.accrued


Tranches = tuple[Tranche, ...]
"""A tuple of numbers alone is left out by the garbage collector, which would look at each tranche of a list."""


def earned_tranche(closed: int, work: int, pay: int) -> Tranche:
    """Return the tranche of an epoch's pay (rule 1)."""
    unvested = pay * UNVESTED_SHARE.numerator // UNVESTED_SHARE.denominator
    return Tranche(closed, work, unvested, closed, pay - unvested, pay - unvested)


def join_tranches(tranches: Sequence[Tranche], earlier: Sequence[Tranche]) -> Tranches:
    """Return a node's tranches with those of the key `earlier` that it replaced (rule 7)."""
    return tuple(sorted([*earlier, *tranches], key=lambda one: one.closed))


def vest_tranches(tranches: Sequence[Tranche], now: int) -> tuple[Tranches, int]:
    """Return tranches after vesting, and how much has vested (rule 1)."""
    after, amount = list[Tranche](), 0
    for one in tranches:
        left = one.closed + VESTING_MS - one.since
        passed = min(now - one.since, left)
        if passed > 0 and one.unvested:
            part = one.unvested * passed // left
            amount += part
            rest, until, there = one.unvested - part, one.since + passed, one.accrued + part
            after.append(Tranche(one.closed, one.work, rest, until, there, one.at_once, one.taken))
        else:
            after.append(one)
    return tuple(after), amount


def held_back(tranches: Sequence[Tranche], now: int, proven: bool) -> list[int]:
    """Return what of each tranche's accrued part is held back (rules 2 and 3). `tranches`: oldest first."""
    if not proven:
        return [one.accrued for one in tranches]
    left, amounts = HOLDBACK, list[int]()
    for one in reversed(tranches):
        if not left:
            return [*[0] * (len(tranches) - len(amounts)), *amounts[::-1]]
        within = min(left, one.work) if now - one.closed < VESTING_MS else 0
        left -= within
        share = -(-one.at_once * within // one.work) if one.work else 0
        amounts.append(min(one.accrued, max(0, share - one.taken)))
    return amounts[::-1]


def release_tranches(tranches: Sequence[Tranche], now: int, proven: bool) -> tuple[Tranches, int]:
    """Return tranches after a release, and how much is released (rules 2, 3 and 6)."""
    after, amount = list[Tranche](), 0
    for one, kept in zip(tranches, held_back(tranches, now, proven), strict=True):
        if one.accrued == kept:
            after.append(one)
        else:
            amount += one.accrued - kept
            after.append(Tranche(one.closed, one.work, one.unvested, one.since, kept, one.at_once, one.taken))
    return merge_tranches(after, now), amount


def merge_tranches(tranches: Sequence[Tranche], now: int) -> Tranches:
    """Return tranches with those as old as `VESTING_MS` made into one (rule 6)."""
    old = [one for one in tranches if now - one.closed >= VESTING_MS]
    if not old:
        return tuple(tranches)
    young = tuple([one for one in tranches if now - one.closed < VESTING_MS])
    accrued, unvested = sum(one.accrued for one in old), sum(one.unvested for one in old)
    if not accrued + unvested:
        return young
    work = sum(one.work for one in old)
    return (Tranche(old[-1].closed, work, unvested, old[-1].since, accrued, at_once=0), *young)


class Forfeit(NamedTuple):
    """The parts that a forfeit takes. `lacking`: the rest of the amount, which is out of its reach."""

    tranches: Tranches
    unvested: int
    accrued: int
    lacking: int


def forfeit_amount(tranches: Sequence[Tranche], now: int, proven: bool, amount: int) -> Forfeit:
    """Return tranches without `amount`, which is not negative, and where it was taken (rule 4)."""
    after, left, unvested, accrued = [], amount, 0, 0
    for one, reach in reversed(list(zip(tranches, held_back(tranches, now, proven), strict=True))):
        first = min(left, one.unvested)
        second = min(left - first, reach)
        left, unvested, accrued = left - first - second, unvested + first, accrued + second
        rest, there, taken = one.unvested - first, one.accrued - second, one.taken + second
        after.append(Tranche(one.closed, one.work, rest, one.since, there, one.at_once, taken))
    return Forfeit(tuple(after[::-1]), unvested, accrued, left)
