"""The measured throughput of a node, and its cost per reference rollout. Pure, in integers and fractions.

Weights in milli reference rollouts (milli-RE), rates in milli-RE per hour, times in ms.

Rules
1. Throughput v is accepted work over leased time (leased_time.py), both halved per hour of leased time
   (ledger/half_life.py). They decay once per closed epoch, by the whole minutes of leased time; seconds beyond these
   count at the next decay.
2. Its lower bound is v * max(1 - 1.64 cv / sqrt(n), 1/2), rounded down. cv: standard deviation over mean of the rates
   of the newest n accepted groups, at most `SAMPLES`. 1.64 is 41/25; the root has a resolution of 1e-9, and is rounded
   up.
3. A node is ready with `READY_GROUPS` accepted groups (p95 error of the cost: 18 %, and 31 % at 10). Before that it is
   a newcomer: its rate is the benchmark, or the throughput measured so far if that is less. Canaries count as groups.
4. rho = ask / rate, in nano units per milli-RE. A node without a rate has none.
5. `STALE_MS` after the end of its last lease a measurement is forgotten, and the node is a newcomer again: its machine
   may be another one, and a node that once delivered nothing has a way back.
6. Probation ends with `PROBATION_GROUPS` accepted groups in a row. A refused group or an expired lease begins the row
   anew; a lease that was given back does not.
   It begins again with a forgotten measurement, once no pay of the node is held.
"""

import functools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Final, NamedTuple

import msgspec

from echo2.coordinator.market.leased_time import Interval, extend_intervals, lease_interval
from echo2.ledger.half_life import decay

HOUR: Final = 3_600_000
HALF_LIFE: Final = 60
"""Minutes of leased time in which work and leased time count half."""
MINUTE: Final = 60_000
STALE_MS: Final = 24 * HOUR
READY_GROUPS: Final = 30
SAMPLES: Final = 64
PROBATION_GROUPS: Final = 10
NORMAL_QUANTILE: Final = Fraction(41, 25)
"""Quantile of the normal distribution at 95 %."""
RESOLUTION: Final = 10**9


class LeasedGroup(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The end of a lease, as its entry states it. `weight`: 0 unless its group was accepted.
    `returned`: whether the node gave it back. `measured`: false of work
    that is credited apart from a lease's time: it is paid, and in no measurement."""

    sent: int
    received: int | None
    expires: int
    weight: int
    accepted: bool
    returned: bool = False
    measured: bool = True


class Throughput(NamedTuple):
    """A node as measured. `work`, `leased`: decayed sums. `rest`: leased ms not yet decayed by. `covered`: the newest
    part of its leased time. `rates`: rates of its newest accepted groups. `groups`: accepted so far. `row`: accepted
    groups in a row. `proven`: whether probation has ended (rule 6)."""

    work: int = 0
    leased: int = 0
    rest: int = 0
    covered: tuple[Interval, ...] = ()
    rates: tuple[int, ...] = ()
    groups: int = 0
    row: int = 0
    proven: bool = False

    @property
    def ready(self) -> bool:
        """Whether its own measurement counts (rule 3)."""
        return self.groups >= READY_GROUPS

    @property
    def mean(self) -> Fraction:
        """v, in milli-RE per hour; 0 before anything was leased."""
        return Fraction(self.work * HOUR, self.leased) if self.leased else Fraction(0)

    @property
    def lower(self) -> int:
        """The lower bound of v (rule 2)."""
        return _lower(self.work, self.leased, self.rates)

    def stale(self, now: int) -> bool:
        """Whether it is to be forgotten (rule 5)."""
        return bool(self.covered) and now - self.covered[-1].end >= STALE_MS

    def forgotten(self) -> "Throughput":
        """Return what is kept of a stale measurement while pay of the node is held (rule 6)."""
        return Throughput(row=self.row, proven=self.proven)

    def rate(self, benchmark: int) -> int:
        """Return the rate that counts (rule 3); 0: none does. `benchmark`: benchmark as measured before any lease; 0:
        never."""
        if self.ready:
            return self.lower
        if not self.leased:
            return benchmark
        return min(benchmark or int(self.mean), int(self.mean))


NEW_NODE: Final = Throughput()
"""A node that was never measured."""


@functools.lru_cache(maxsize=1 << 14)
def _lower(work: int, leased: int, rates: tuple[int, ...]) -> int:
    """Return the lower bound of a throughput (rule 2). Kept: each opening asks for those of all nodes several times."""
    mean = Throughput(work=work, leased=leased).mean
    return int(mean * max(1 - NORMAL_QUANTILE * relative_error(rates), Fraction(1, 2)))


def relative_error(rates: Sequence[int]) -> Fraction:
    """Return cv / sqrt(n) of rates, rounded up to `RESOLUTION`; 1 for fewer than two."""
    count, total = len(rates), sum(rates)
    if count < 2 or not total:
        return Fraction(1)
    # cv^2 / n = (n sum r^2 - (sum r)^2) / (n (sum r)^2)
    spread, scale = count * sum(rate * rate for rate in rates) - total * total, count * total * total
    if not spread:
        return Fraction(0)
    return Fraction(math.isqrt((spread * RESOLUTION**2 - 1) // scale) + 1, RESOLUTION)


def group_rate(record: LeasedGroup) -> int:
    leased = lease_interval(record.sent, record.received, record.expires)
    return record.weight * HOUR // max(1, leased.end - leased.begin)


class MeasuredNode(NamedTuple):
    """A measurement, and by how much the node's leased time grew in the epoch."""

    throughput: Throughput
    grown: int


def measure_node(before: Throughput, records: Sequence[LeasedGroup]) -> MeasuredNode:
    """Return a node's measurement after an epoch. `records`: ends of its leases in that epoch, in order."""
    records = [one for one in records if one.measured]
    covered, grown = extend_intervals(
        list(before.covered), [lease_interval(one.sent, one.received, one.expires) for one in records]
    )
    minutes, rest = divmod(before.rest + grown, MINUTE)
    accepted = [one for one in records if one.accepted]
    row, proven = _row(before, records)
    after = Throughput(
        work=decay(before.work, minutes, HALF_LIFE) + sum(one.weight for one in accepted),
        leased=decay(before.leased, minutes, HALF_LIFE) + grown,
        rest=rest,
        covered=tuple(covered),
        rates=(*before.rates, *map(group_rate, accepted))[-SAMPLES:],
        groups=before.groups + len(accepted),
        row=row,
        proven=proven,
    )
    return MeasuredNode(after, grown)


def _row(before: Throughput, records: Sequence[LeasedGroup]) -> tuple[int, bool]:
    row, proven = before.row, before.proven
    for one in records:
        if one.returned:
            continue
        row = row + 1 if one.accepted else 0
        proven = proven or row >= PROBATION_GROUPS
    return row, proven
