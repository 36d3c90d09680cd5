"""The pay of the nodes of an epoch, in whole nano units. Pure.

Rules
1. A node is paid floor(p W / 1000): its price p per RE, W its accepted milli-RE, at most its `most` (prices.py, rule
   6). Fractions are summed per 2^-32 and rounded down; the whole units among them go to the account `rounding`.
2. Quickness of a lease is (expires - received) / (expires - sent), from 0 to 1, rounded down to 2^-32; that of a node
   is the mean of its leases by weight, rounded down. With a share beta above 0 (at most 1/10) the pay of rule 1 is
   multiplied by 1 + beta (q - m) and rounded down again. m is the mean of q by pay, so that all bonuses sum to 0.
3. `split`: every price is the budget over all accepted work, at most the reserve price.
4. A sum of pay and rounding never exceeds the sum of p most / 1000, so never the budget.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Final, NamedTuple

from echo2.coordinator.market.prices import MILLI, PricedNode
from echo2.coordinator.market.throughput import LeasedGroup

ONE: Final = 1 << 32


class Delivery(NamedTuple):
    """A node's deliveries in an epoch. `quickness`: quickness per 2^-32."""

    work: int
    quickness: int


class EpochPay(NamedTuple):
    """`pay`: pay of each node, in the order given. `prices`: those that applied. `rounding`: rounding for that
    account."""

    pay: list[int]
    prices: list[Fraction]
    rounding: int

    @property
    def spent(self) -> int:
        """All that leaves the budget."""
        return sum(self.pay) + self.rounding


def delivery(records: Sequence[LeasedGroup]) -> Delivery:
    """Return what a node delivered, from the ends of its leases."""
    accepted = [one for one in records if one.accepted]
    work = sum(one.weight for one in accepted)
    quick = sum(one.weight * _quickness(one) for one in accepted)
    return Delivery(work, quick // work if work else 0)


def _quickness(record: LeasedGroup) -> int:
    if record.received is None or record.expires <= record.sent:
        return 0
    left = record.expires - max(record.received, record.sent)
    return max(0, left) * ONE // (record.expires - record.sent)


def pay_nodes(nodes: Sequence[PricedNode], deliveries: Sequence[Delivery], beta: Fraction) -> EpochPay:
    """Return the pay of nodes (rules 1 and 2)."""
    base, fractions = [], 0
    for node, one in zip(nodes, deliveries, strict=True):
        divisor = node.price.denominator * MILLI
        times = node.price.numerator * one.work
        if one.work > node.most:
            times, divisor = node.price.numerator * node.most.numerator, divisor * node.most.denominator
        whole, rest = divmod(times, divisor)
        base.append(whole)
        fractions += rest * ONE // divisor
    total = sum(base)
    pay = base
    if beta and total:
        mean = sum(amount * one.quickness for amount, one in zip(base, deliveries, strict=True))
        pay = [
            _with_bonus(amount, one.quickness * total - mean, ONE * total, beta)
            for amount, one in zip(base, deliveries, strict=True)
        ]
    return EpochPay(pay, [node.price for node in nodes], total - sum(pay) + fractions // ONE)


def _with_bonus(amount: int, above: int, scale: int, beta: Fraction) -> int:
    """Return amount * (1 + beta * above / scale), rounded down."""
    return amount * (scale * beta.denominator + above * beta.numerator) // (scale * beta.denominator)


def split_prices(nodes: Sequence[PricedNode], deliveries: Sequence[Delivery], budget: int) -> list[PricedNode]:
    """Return nodes at the price of `split` (rule 3)."""
    work = sum(one.work for one in deliveries)
    if not work:
        return list(nodes)
    price = Fraction(budget * MILLI, work)
    return [
        node._replace(price=min(node.price, price), most=Fraction(one.work))
        for node, one in zip(nodes, deliveries, strict=True)
    ]
