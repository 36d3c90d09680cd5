"""A market that a coordinator runs: nodes ask, the cheapest work, others are told why not, and each epoch is paid."""

from pathlib import Path

import msgspec
import pytest

from coordinator.market.entries import EpochClosed
from p2p.identity import peer_id
from tests.support.group_world import ALICE, BOB, group
from tests.support.market_world import EPOCH, NANO, MarketWorld, key_of, told

CAROL = key_of(3)


@pytest.fixture
def world(tmp_path: Path) -> MarketWorld:
    return MarketWorld(tmp_path)


def test_a_new_run_asks_nobody_before_an_epoch_is_open(world: MarketWorld) -> None:
    assert world.refusal().code == "no-ask"
    world.tick()
    coming = world.asks(ALICE).coming
    assert coming is not None
    assert coming.epoch == 1
    assert world.asks(ALICE).place == "none"


def test_a_newcomer_is_active_at_once_and_paid_at_the_close(world: MarketWorld) -> None:
    world.open_with({ALICE: NANO // 10})
    answer = world.asks(ALICE)
    assert (answer.place, answer.rate) == ("active", 10_000)  # the estimate: a tenth of the need
    lease = world.lease()
    world.submit(group(lease))
    (receipt,) = world.decide_all()
    assert receipt.verdict == "accepted"
    assert (receipt.epoch, receipt.price) == (1, NANO // 100)  # its own cost: 0.1 per hour over 10 RE per hour
    assert world.pay(ALICE) == 0  # nothing moves at the verdict
    assert all(not one.postings for one in world.entries("lease."))
    world.open_with({ALICE: NANO // 10})
    assert world.pay(ALICE) == receipt.price * receipt.weight // 1000
    (closed,) = world.entries("epoch.closed")
    (row,) = msgspec.msgpack.decode(closed.facts, type=EpochClosed).nodes
    assert (row.node, row.work, row.active) == (peer_id(ALICE), receipt.weight, True)
    assert told(world.replayed()) == told(world.market.service.state)


def test_a_node_above_the_highest_price_is_told_which_ask_is_not(world: MarketWorld) -> None:
    world.open_with({ALICE: NANO // 10, BOB: 2 * NANO})
    refused = world.refusal(node=BOB)
    assert refused.code == "not-active"
    assert "an ask of at most 0.10 per hour is not" in refused.sentence
    assert world.asks(BOB).place == "out"


def test_a_crash_in_the_middle_of_an_epoch_changes_no_pay(world: MarketWorld) -> None:
    world.open_with({ALICE: NANO // 10})
    world.accepted()
    before = told(world.market.service.state)
    world.reopen(away=3_000)
    world.tick()
    assert told(world.market.service.state) == before
    world.accepted()
    world.now += EPOCH
    world.open_with({ALICE: NANO // 10})
    assert world.pay(ALICE) > 0
    assert told(world.replayed()) == told(world.market.service.state)
