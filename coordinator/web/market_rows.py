"""The public view of a market and of its nodes, from the figures of the epoch that runs and from the ledger.

Rules
1. The figures that one epoch fixes are computed once per epoch, in the thread that builds the state: places and prices
   of its nodes, the supply curve, and what the epoch before paid. Everything else is a few reads by index.
2. No list of the view grows with the run: the supply curve has at most `MOST_POINTS` points. Nodes are shown in pages.
3. Amounts are integers of the ledger. `step_cost` alone needs a measured time; it is an estimate, and says so.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.coordinator.epochs.epoch_figures import PresentMarket
from echo2.coordinator.market.activation import Offer
from echo2.coordinator.market.entries import EpochClosed
from echo2.coordinator.market.epochs import payable
from echo2.coordinator.market.market_state import OpenEpoch
from echo2.coordinator.market.prices import MILLI
from echo2.coordinator.metrics.market_views import ClosedMarket, MarketView, NodePay, OpenMarket, SupplyPoint
from echo2.coordinator.metrics.views import NodeRow
from echo2.ledger.epoch_facts import ClosedNode
from echo2.ledger.ledger_entries import ESCROW, FUND, accrued_account, unvested_account

MOST_POINTS: Final = 160
_UNPAID_NODE: Final = ClosedNode("", 0, 0, 0, 0, 0, active=False)


class _Place(NamedTuple):
    place: str
    rank: int
    price: int | None


class _Epoch(NamedTuple):
    """Figures that epochs have fixed (rule 1). `number`, `open`: number of the last one opened, and whether it runs."""

    number: int
    open: bool
    places: dict[str, _Place]
    supply: list[SupplyPoint]
    paid: dict[str, ClosedNode]
    last: ClosedMarket | None


_NO_EPOCH: Final = _Epoch(0, False, {}, [], {}, None)


class MarketRows:
    """The views of one run's market. Used by one thread at a time."""

    def __init__(self) -> None:
        self._epoch = _NO_EPOCH

    def view(self, present: PresentMarket, database: Database, step_seconds: float | None) -> MarketView:
        """Return the market's view. `step_seconds`: step seconds of a learner's step; None: not measured."""
        epoch, running = self._fixed_epoch(present, database), present.running
        own = 0 if running is None else running.terms.budget
        return MarketView(
            currency=present.currency,
            entry=present.entry,
            closes=present.closes,
            running=None if running is None else _open(running, epoch, present.earned),
            last=epoch.last,
            spent=-Ledger(database).balance(FUND) - own,
            step_cost=_step_cost(epoch.last, step_seconds),
            payments=present.payments,
        )

    def with_pay(self, rows: Iterable[NodeRow], present: PresentMarket, database: Database) -> list[NodeRow]:
        """Return rows of nodes with what the market and the ledger say of each."""
        epoch, ledger = self._fixed_epoch(present, database), Ledger(database)
        return [msgspec.structs.replace(row, pay=_pay(row.id, epoch, ledger)) for row in rows]

    def _fixed_epoch(self, present: PresentMarket, database: Database) -> _Epoch:
        """Return what the epochs have fixed, computed anew where one was opened or closed since."""
        runs = present.running is not None
        if (self._epoch.number, self._epoch.open) != (present.epoch, runs):
            rows, last = _closed_epoch(Ledger(database), present.epoch - runs)
            places = {} if present.running is None else _places(present.running)
            paid = {row.node: row for row in rows}
            self._epoch = _Epoch(present.epoch, runs, places, supply(present.offers), paid, last)
        return self._epoch


def supply(offers: Iterable[Offer]) -> list[SupplyPoint]:
    """Return the supply curve of offers, cheapest first, thinned to `MOST_POINTS` points (rule 2)."""
    points, rate = list[SupplyPoint](), 0
    for cost, more in sorted((offer.ask * MILLI // offer.rate, offer.rate) for offer in offers):
        rate += more
        points.append(SupplyPoint(rate=rate, cost=cost))
    return _thin_points(points)


def _thin_points(points: Sequence[SupplyPoint]) -> list[SupplyPoint]:
    """Choose points, evenly spaced, with the last one: of neighbours the last, which has the rate of all of them."""
    if len(points) <= MOST_POINTS:
        return list(points)
    return [points[-(-(number + 1) * len(points) // MOST_POINTS) - 1] for number in range(MOST_POINTS)]


def _places(running: OpenEpoch) -> dict[str, _Place]:
    market = running.plan.market
    places = {one.node.node.decode(): _Place("run-off", 0, int(one.node.price)) for one in running.plan.run_offs}
    places |= {one.node.decode(): _Place("standby", one.rank, None) for one in market.activation.standby}
    for rank, node in enumerate(market.nodes, 1):
        places[node.node.decode()] = _Place("active", rank, int(node.price))
    return places


def _open(running: OpenEpoch, epoch: _Epoch, earned: int | None) -> OpenMarket:
    terms, market = running.terms, running.plan.market
    return OpenMarket(
        epoch=terms.epoch,
        opened=running.opened,
        ends=running.opened + terms.milliseconds,
        need=terms.need,
        reserve=terms.reserve,
        budget=terms.budget + running.forfeits,
        forfeits=running.forfeits,
        earned=earned,
        active=len(market.nodes),
        standby=len(market.activation.standby),
        run_off=len(running.plan.run_offs),
        short=market.activation.short,
        binding=market.binding,
        clearing=max((one.price or 0 for one in epoch.places.values() if one.place == "active"), default=None),
        supply=epoch.supply,
    )


def _closed_epoch(ledger: Ledger, number: int) -> tuple[list[ClosedNode], ClosedMarket | None]:
    """Return what an epoch paid to each node, and in all; None: it was not closed."""
    begun, entry = ledger.find(f"epoch:{number}:opened"), ledger.find(f"epoch:{number}:closed")
    if begun is None or entry is None:
        return [], None
    fact = msgspec.msgpack.decode(entry.facts, type=EpochClosed)
    paid = [row for row in fact.nodes if row.pay]
    return fact.nodes, ClosedMarket(
        epoch=number,
        opened=fact.since,
        closed=entry.at,
        budget=sum(amount for account, amount in begun.postings if account == ESCROW),
        paid=sum(row.pay for row in paid),
        work=sum(row.work for row in fact.nodes),
        nodes=len(paid),
        short=fact.short,
        binding=fact.binding,
        entry=entry.seq,
    )


def _step_cost(last: ClosedMarket | None, step_seconds: float | None) -> int | None:
    """Return what a learner's step costs at the last epoch's pace (rule 3)."""
    if last is None or step_seconds is None or last.closed <= last.opened:
        return None
    return last.paid * round(1000 * step_seconds) // (last.closed - last.opened)


def _pay(node: str, epoch: _Epoch, ledger: Ledger) -> NodePay:
    place, row = epoch.places.get(node, _Place("", 0, None)), epoch.paid.get(node, _UNPAID_NODE)
    return NodePay(
        place=place.place,
        rank=place.rank,
        price=place.price,
        work=row.work,
        pay=row.pay,
        unvested=ledger.balance(unvested_account(node)),
        accrued=ledger.balance(accrued_account(node)),
        payable=ledger.balance(payable(node)),
    )
