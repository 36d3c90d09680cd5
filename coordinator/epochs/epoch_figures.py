"""Keep what the page shows of the epoch that runs, from the ledger's entries as the market reads them.

Rules
1. `take` is called with each entry once the market's state has read it. When an epoch opens it does work in proportion
   to the nodes that are here, as opening does anyway; at each other entry a constant amount.
2. `present` hands out values that nobody changes any more, so that another thread may read them.
"""

from fractions import Fraction
from typing import NamedTuple

import msgspec

from echo2.coordinator.market.activation import Offer
from echo2.coordinator.market.entries import StatedEnd
from echo2.coordinator.market.market_state import MarketState, OpenEpoch
from echo2.coordinator.market.prices import MILLI, PricedNode
from echo2.coordinator.metrics.market_views import PaymentView
from echo2.ledger.ledger_entries import Entry


class PresentMarket(NamedTuple):
    """The market at a moment. `entry`: the last one that it has read. `epoch`: epoch of the last epoch that was opened.
    `running`: the open one, with its `offers`; None: none is open. `closes`: time until which asks for the next epoch
    are sealed; None: it is not announced. `earned`: pay earned in the open epoch so far;
    None: none is open."""

    currency: str
    payments: PaymentView
    entry: int
    epoch: int
    running: OpenEpoch | None
    offers: tuple[Offer, ...]
    closes: int | None
    earned: int | None


class EpochFigures:
    """The figures of a run's market. `state`: state of the market, read by others. `payments`: how money leaves the
    ledger."""

    def __init__(self, state: MarketState, currency: str, payments: PaymentView) -> None:
        self._state, self._currency, self._payments = state, currency, payments
        self._entry = 0
        self._offers: tuple[Offer, ...] = ()
        self._priced: dict[str, PricedNode] = {}
        self._work: dict[str, int] = {}
        self._earned = 0

    def take(self, entry: Entry) -> None:
        """Read an entry that the state has just read (rule 1)."""
        self._entry = entry.seq
        if entry.kind == "epoch.opened":
            self._take_opening()
        elif entry.kind == "lease.accepted":
            self._take_acceptance(msgspec.msgpack.decode(entry.facts, type=StatedEnd))

    def present(self) -> PresentMarket:
        """Return the market as it is (rule 2)."""
        state = self._state
        running, announced = state.open, state.announced
        return PresentMarket(
            self._currency, self._payments, self._entry, state.epoch, running,
            () if running is None else self._offers,
            None if announced is None else announced.closes,
            None if running is None else self._earned,
        )  # fmt: skip

    def _take_opening(self) -> None:
        state = self._state
        self._work, self._earned, self._priced = {}, 0, {}
        if state.open is not None:
            plan = state.open.plan
            self._offers = tuple(plan.offered)
            nodes = [*plan.market.nodes, *(one.node for one in plan.run_offs)]
            self._priced = {one.node.decode(): one for one in nodes}

    def _take_acceptance(self, end: StatedEnd) -> None:
        node = self._priced.get(end.node)
        if node is None:
            return
        before = self._work.get(end.node, 0)
        work = self._work[end.node] = before + end.weight
        more = min(Fraction(work), node.most) - min(Fraction(before), node.most)
        self._earned += int(node.price * more / MILLI)
