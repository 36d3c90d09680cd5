"""The public view of a market: what the page shows is what the ledger has."""

from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.epochs.epoch_figures import PresentMarket
from echo2.coordinator.market.activation import Offer
from echo2.coordinator.market.entries import EpochClosed
from echo2.coordinator.metrics.market_views import MarketView, NodePay, PaymentView
from echo2.coordinator.web.market_rows import MOST_POINTS, MarketRows, supply
from echo2.ledger.ledger_entries import FUND
from echo2.p2p.identity import peer_id
from tests.support import pictures
from tests.support.group_world import ALICE, BOB, group
from tests.support.market_world import EPOCH, NANO, MarketWorld

STEP = 1.5
"""Seconds of a learner's step."""


@pytest.fixture
def world(tmp_path: Path) -> MarketWorld:
    return MarketWorld(tmp_path)


def shown(world: MarketWorld, rows: MarketRows | None = None) -> MarketView:
    return (rows or MarketRows()).view(world.market.figures.present(), world.group_service.database, STEP)


def pays(world: MarketWorld, *nodes: bytes) -> list[NodePay | None]:
    rows = [pictures.node(1, id=peer_id(node)) for node in nodes]
    present = world.market.figures.present()
    return [row.pay for row in MarketRows().with_pay(rows, present, world.group_service.database)]


def test_before_the_first_epoch_nothing_is_shown_but_until_when_asks_are_taken(world: MarketWorld) -> None:
    world.tick()
    view = shown(world)
    assert (view.currency, view.running, view.last, view.spent, view.step_cost) == ("USD", None, None, 0, None)
    assert view.payments == PaymentView(rail="csv", minimum=5 * NANO, most=100 * NANO, payee_fee=0)
    assert view.closes == world.asks(ALICE).coming.closes  # type: ignore[union-attr]


def test_an_open_epoch_shows_need_prices_and_what_is_earned_so_far(world: MarketWorld) -> None:
    world.open_with({ALICE: NANO // 10, BOB: 2 * NANO})
    running = shown(world).running
    assert running is not None
    assert (running.epoch, running.need, running.budget, running.earned) == (1, 100_000, 10 * NANO, 0)
    assert (running.active, running.clearing, running.ends) == (1, NANO // 100, running.opened + EPOCH)
    assert running.supply[0].cost == NANO // 100
    world.submit(group(world.lease()))
    (receipt,) = world.decide_all()
    world.tick()
    again = shown(world)
    assert again.running is not None
    assert again.running.earned == receipt.weight * NANO // 100 // 1000
    assert again.entry == world.group_service.ledger.tip().entries
    assert again.spent == 0


def test_a_closed_epoch_shows_what_it_paid_and_what_a_step_costs(world: MarketWorld) -> None:
    world.open_with({ALICE: NANO // 10})
    world.accepted()
    world.now += EPOCH
    world.open_with({ALICE: NANO // 10})
    (closed,) = world.entries("epoch.closed")
    fact = msgspec.msgpack.decode(closed.facts, type=EpochClosed)
    view = shown(world)
    last = view.last
    assert last is not None
    assert (last.epoch, last.paid, last.entry, last.budget) == (1, fact.nodes[0].pay, closed.seq, 10 * NANO)
    assert last.paid == world.pay(ALICE) > 0
    assert view.spent == last.paid == -world.group_service.ledger.balance(FUND) - 10 * NANO
    assert view.step_cost == last.paid * 1500 // (closed.at - fact.since)
    (pay,) = pays(world, ALICE)
    assert pay is not None
    assert (pay.place, pay.rank, pay.work, pay.pay, pay.balance) == ("active", 1, last.work, last.paid, last.paid)


def test_a_node_without_a_place_has_a_row_of_nothing(world: MarketWorld) -> None:
    world.open_with({ALICE: NANO // 10})
    assert pays(world, BOB) == [NodePay()]


def test_the_same_epoch_is_laid_out_once_and_a_crash_changes_nothing(
    world: MarketWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.open_with({ALICE: NANO // 10})
    world.accepted()
    world.tick()
    rows = MarketRows()
    before = shown(world, rows)
    world.reopen()
    world.tick()
    assert shown(world) == before
    monkeypatch.setattr("echo2.coordinator.web.market_rows.supply", pytest.fail)
    assert shown(world, rows) == before


@pytest.mark.slow
def test_a_curve_of_ten_thousand_offers_has_a_few_points_and_all_of_the_supply() -> None:
    offers = [Offer(b"%d" % number, 7 * number * NANO % 9973, 1000 + number) for number in range(10_000)]
    points = supply(offers)
    assert len(points) == MOST_POINTS
    assert points[-1].rate == sum(offer.rate for offer in offers)
    assert [point.cost for point in points] == sorted(point.cost for point in points)
    for point in points[:: MOST_POINTS // 4]:
        cheaper = sum(one.rate for one in offers if one.ask * 1000 // one.rate < point.cost)
        assert cheaper < point.rate


def test_nobody_offers_in_an_empty_market() -> None:
    empty = PresentMarket("USD", PaymentView(rail="csv", minimum=1, most=1, payee_fee=0), 0, 0, None, (), None, None)
    assert supply(empty.offers) == []
