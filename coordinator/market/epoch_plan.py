"""The plan of an epoch: its active nodes with their prices, and the nodes that may still hand in. Pure.

Rules
1. A node is offered if it is present, not suspended, and has an ask and a rate (throughput.py). It is an incumbent if
   it was active in the epoch before.
2. A node that was active in the epoch before, and is no longer, is in its run-off: until `run_off` after it was last
   active, it is paid at its last price. It is paid for at most what was left to it, and no more than an epoch's work.
3. Run-offs of nodes that the whole budget would not keep active are set aside from it, and activation is made with the
   rest. Nodes that fall out by that have their run-offs from what is then left. A run-off that this does not cover
   whole, and those behind it, are not paid.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from echo2.coordinator.market.activation import Offer
from echo2.coordinator.market.entries import EpochAnnounced
from echo2.coordinator.market.epoch_terms import price_terms
from echo2.coordinator.market.prices import Market, PricedNode, clearing, cost_of, within_budget
from echo2.coordinator.market.throughput import NEW_NODE, Throughput


class RunOff(NamedTuple):
    """The work that a node which is no longer active may still hand in. `until`: ms."""

    node: PricedNode
    until: int


class EpochPlan(NamedTuple):
    """`market`: the active nodes. `run_offs`: the others that are paid. `budget`: budget of all of them. `offered`: the
    offers that it was made of."""

    market: Market
    run_offs: list[RunOff]
    budget: int
    offered: Sequence[Offer]


def offers(
    present: Iterable[str],
    asks: Mapping[str, int],
    measurements: Mapping[str, Throughput],
    benchmarks: Mapping[str, int],
    incumbents: frozenset[str],
) -> list[Offer]:
    """Return the offers of the nodes that are present (rule 1)."""
    of_present: list[Offer] = []
    for node in present:
        known = measurements.get(node, NEW_NODE)
        ask, rate = asks.get(node), known.rate(benchmarks.get(node, 0))
        if ask is not None and rate > 0:
            of_present.append(Offer(node.encode(), ask, rate, node in incumbents, not known.ready))
    return of_present


def plan_epoch(
    offered: Sequence[Offer],
    terms: EpochAnnounced,
    beacon: bytes,
    budget: int,
    leavers: Sequence[RunOff],
    owners: Mapping[str, bytes],
) -> EpochPlan:
    """Return the plan. `leavers`: leavers of rule 2, should they not be active again. `owners`: node -> tag."""
    tags = {node.encode(): tag for node, tag in owners.items()}
    whole = clearing(offered, price_terms(terms, beacon, budget), tags)
    gone = _affordable(_not_in(leavers, whole.within(price_terms(terms, beacon, budget))), budget)
    left = budget - _cost(gone)
    market = within_budget(whole, price_terms(terms, beacon, left))
    if gone:
        named = {one.node.node for one in gone}
        active = [one.node for one in market.nodes]
        gone = _not_in(gone, active)
        late = [one for one in _not_in(leavers, active) if one.node.node not in named]
        spare = left - sum(cost_of(one.price, one.most) for one in market.nodes)
        gone += _affordable(late, max(0, spare))
    return EpochPlan(market, gone, budget, offered)


def _not_in(leavers: Sequence[RunOff], active: Iterable[bytes]) -> list[RunOff]:
    nodes = set(active)
    return [one for one in leavers if one.node.node not in nodes]


def _cost(run_offs: Iterable[RunOff]) -> int:
    return sum(cost_of(one.node.price, one.node.most) for one in run_offs)


def _affordable(leavers: Sequence[RunOff], budget: int) -> list[RunOff]:
    """Return the longest beginning of run-offs that a budget covers (rule 3)."""
    costs = accumulate(cost_of(one.node.price, one.node.most) for one in leavers)
    return [one for one, cost in zip(leavers, costs, strict=True) if cost <= budget]
