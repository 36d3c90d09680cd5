"""The pay of the nodes of an epoch, in whole nano units. Pure.

Rules
1. A node is paid floor(p W / 1000): its price p per RE, W its accepted milli-RE, at most its `most` (prices.py, rule
   4). Fractions are summed per 2^-32 and rounded down; the whole units among them go to the account `rounding`.
2. A sum of pay and rounding never exceeds the sum of p most / 1000, so never the budget.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from echo2.coordinator.market.prices import MILLI, PricedNode
from echo2.coordinator.market.throughput import LeasedGroup

ONE: Final = 1 << 32


class EpochPay(NamedTuple):
    """`pay`: pay of each node, in the order given. `rounding`: rounding for that account."""

    pay: list[int]
    rounding: int

    @property
    def spent(self) -> int:
        """All that leaves the budget."""
        return sum(self.pay) + self.rounding


def accepted_work(records: Sequence[LeasedGroup]) -> int:
    """Return the accepted milli-RE of a node, from the ends of its leases."""
    return sum(one.weight for one in records if one.accepted)


def pay_nodes(nodes: Sequence[PricedNode], works: Sequence[int]) -> EpochPay:
    """Return the pay of nodes for their accepted work (rule 1)."""
    pay, fractions = [], 0
    for node, work in zip(nodes, works, strict=True):
        divisor = node.price.denominator * MILLI
        times = node.price.numerator * work
        if work > node.most:
            times, divisor = node.price.numerator * node.most.numerator, divisor * node.most.denominator
        whole, rest = divmod(times, divisor)
        pay.append(whole)
        fractions += rest * ONE // divisor
    return EpochPay(pay, fractions // ONE)
