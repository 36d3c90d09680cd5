"""Money behind a key that is replaced, in a run: by its owner, and by a thief who has the same key."""

from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.market.entries import Forfeited
from echo2.coordinator.market.epochs import payable
from echo2.coordinator.payouts import payout_book, payout_plan
from echo2.coordinator.payouts.payout_plan import KnownPayees, PayoutLimits, SendingLimits
from echo2.coordinator.payouts.plan_files import PayoutFolder
from echo2.coordinator.rails import account_text
from echo2.ledger.balance_waits import BALANCE_WAIT_MS
from echo2.ledger.ledger_facts import KeyAccount
from echo2.p2p.identity import peer_id
from echo2.protocol.leases import Lease
from echo2.protocol.market import PayeeRequest, PayeeResponse
from echo2.runtime.units import DAY
from tests.support.group_world import ALICE, BOB, RUN, group
from tests.support.market_world import EPOCH, NANO, MarketWorld, told

HOUR = 3_600_000


def after_groups(folder: Path, count: int) -> tuple[MarketWorld, Lease]:
    """Return a run whose first epoch is closed, in which Alice had so many groups accepted, and the last lease."""
    world = MarketWorld(folder, batch_groups=99)
    world.open_with({ALICE: NANO // 10})
    for _ in range(count):
        lease = world.lease(ALICE)
        world.now += 1_000
        world.submit(group(lease), ALICE)
        world.decide_all()
    world.now += EPOCH
    world.open_with({ALICE: NANO // 10})
    return world, lease


@pytest.fixture
def world(tmp_path: Path) -> MarketWorld:
    """A run in which Alice has earned, beyond her probation. Bob is the key that replaces hers."""
    world, _ = after_groups(tmp_path, 12)
    assert world.pay(ALICE) > 0
    return world


def pass_hours(world: MarketWorld, hours: int) -> None:
    for _ in range(hours):
        world.now += HOUR
        world.tick(finished=True)


def stated(world: MarketWorld, account: str | None, node: bytes) -> PayeeResponse:
    answer = world.market.payees.answer(node, PayeeRequest(account=account), world.now)
    assert isinstance(answer, PayeeResponse), answer
    return answer


def planned(world: MarketWorld) -> tuple[dict[str, str], dict[str, str]]:
    """Return the accounts that a plan pays now, and who is left out and why, both by peer id."""
    ledger = world.group_service.ledger
    waits = payout_book.waits(ledger)
    payees = PayoutFolder(world.path.parent).payees(world.now, {node: one.since for node, one in waits.items()})
    owed = payout_plan.payable_at(ledger.balances(), [])
    limits = PayoutLimits(day=10**9, node=10**9, minimum=1)
    known = KnownPayees(payees, {}, waits)
    chosen = payout_plan.choose(RUN, 1, owed, known, [], limits, world.now, account_text.check)
    return (
        {one.node: payees[one.node].account for one in chosen.payments},
        {one.node: one.why for one in chosen.left_out},
    )


def test_an_owner_replaces_a_key_and_is_paid_at_the_new_one(world: MarketWorld) -> None:
    before, replaced_at = world.pay(ALICE), world.now
    world.group_service.accounts.rotate(ALICE, BOB, world.now)
    answer = stated(world, "bob at a bank", BOB)  # before any group of his own
    (moving,) = answer.moving
    assert (moving.node, moving.amount, moving.at, moving.disputed) == (
        peer_id(ALICE), before, replaced_at + BALANCE_WAIT_MS, False
    )  # fmt: skip
    pass_hours(world, 71)
    assert (world.pay(ALICE), world.pay(BOB)) == (before, 0)
    paid, left = planned(world)
    assert (paid, left) == ({}, {peer_id(ALICE): f"its key was replaced: its balance moves to {peer_id(BOB)}"})
    pass_hours(world, 2)
    assert (world.pay(ALICE), world.pay(BOB)) == (0, before)
    assert stated(world, None, BOB).moving == []
    assert planned(world) == ({peer_id(BOB): "bob at a bank"}, {})
    assert "Its balance has moved there." in world.market.replaced_keys.on_greeting(ALICE, True, world.now)
    assert told(world.replayed()) == told(world.market.service.state)


def test_what_a_thiefs_rotation_would_move_goes_to_the_account_of_before(world: MarketWorld) -> None:
    """A thief has Alice's key. He names an account of his own, and replaces the key by his."""
    stated(world, "alice at a bank", ALICE)
    world.now += DAY + 1
    world.tick()
    before = world.pay(ALICE)
    stated(world, "a thief", ALICE)
    world.now += HOUR
    world.group_service.accounts.rotate(ALICE, BOB, world.now)
    stated(world, "a thief", BOB)
    told_alice = world.market.replaced_keys.on_greeting(ALICE, False, world.now)
    assert "`echo2-node keys dispute`" in told_alice
    assert "moves there at" in told_alice
    pass_hours(world, 40)  # the thief's account of Alice's key would be in force by now
    sentence = world.market.replaced_keys.on_greeting(ALICE, True, world.now)
    assert "stays with this key" in sentence
    assert world.market.replaced_keys.on_greeting(ALICE, True, world.now) == sentence  # once more changes nothing
    assert len(world.entries("balance.disputed")) == 1
    assert [one.disputed for one in stated(world, None, BOB).moving] == [True]
    paid, left = planned(world)
    assert paid == {}
    assert "disputed" in left[peer_id(ALICE)]
    pass_hours(world, 40)
    assert (world.pay(ALICE), world.pay(BOB)) == (before, 0)
    assert planned(world) == ({peer_id(ALICE): "alice at a bank"}, {})
    assert not world.entries("balance.moved")
    assert told(world.replayed()) == told(world.market.service.state)


def test_a_thief_who_disputes_the_owners_rotation_sends_the_money_to_the_owner(world: MarketWorld) -> None:
    stated(world, "alice at a bank", ALICE)
    world.now += DAY + 1
    world.tick()
    world.group_service.accounts.rotate(ALICE, BOB, world.now)
    world.market.replaced_keys.on_greeting(ALICE, True, world.now)
    pass_hours(world, 73)
    assert planned(world)[0] == {peer_id(ALICE): "alice at a bank"}


def test_without_an_account_in_force_a_disputed_balance_waits_for_the_operator(world: MarketWorld) -> None:
    world.group_service.accounts.rotate(ALICE, BOB, world.now)
    stated(world, "a thief", BOB)
    world.market.replaced_keys.on_greeting(ALICE, True, world.now)
    pass_hours(world, 73)
    assert planned(world) == ({}, {peer_id(ALICE): payout_plan.NONE_IN_FORCE})


def test_a_dispute_that_comes_too_late_is_said_and_changes_nothing(world: MarketWorld) -> None:
    world.group_service.accounts.rotate(ALICE, BOB, world.now)
    world.now += BALANCE_WAIT_MS
    assert "The dispute is not taken" in world.market.replaced_keys.on_greeting(ALICE, True, world.now)
    assert not world.entries("balance.disputed")
    world.tick(finished=True)
    assert world.pay(ALICE) == 0 < world.pay(BOB)


def test_a_restart_between_moves_the_balance_all_the_same(world: MarketWorld) -> None:
    before = world.pay(ALICE)
    world.group_service.accounts.rotate(ALICE, BOB, world.now)
    world.reopen(away=BALANCE_WAIT_MS)
    assert [one.node for one in world.market.replaced_keys.moving(peer_id(BOB))] in ([], [peer_id(ALICE)])
    world.tick(finished=True)
    assert (world.pay(ALICE), world.pay(BOB)) == (0, before)
    assert told(world.replayed()) == told(world.market.service.state)


def test_a_group_that_is_refused_after_the_move_costs_the_pay_at_the_new_key(tmp_path: Path) -> None:
    """On probation nothing is released, so all of it moves within reach."""
    world, lease = after_groups(tmp_path, 3)
    before = world.pay(ALICE)
    world.group_service.accounts.rotate(ALICE, BOB, world.now)
    world.now += BALANCE_WAIT_MS
    world.tick()
    assert world.pay(BOB) == before
    world.group_service.verdicts.second.reverse(lease.id, "operator", "a proof", world.now)
    world.tick()
    (entry,) = world.entries("forfeited")
    fact = msgspec.msgpack.decode(entry.facts, type=Forfeited)
    assert (fact.node, fact.lacking) == (peer_id(BOB), 0)
    assert world.pay(BOB) == before - fact.amount < before
    assert told(world.replayed()) == told(world.market.service.state)


def test_money_that_was_planned_before_is_not_sent_to_a_replaced_key(world: MarketWorld) -> None:
    pass_hours(world, 25)
    amount = world.group_service.ledger.balance(payable(peer_id(ALICE)))
    assert amount > 0
    world.group_service.accounts.rotate(ALICE, BOB, world.now)
    waits = payout_book.waits(world.group_service.ledger)
    limits = SendingLimits(PayoutLimits(day=10**9, node=10**9, minimum=1), [], world.now, waits)
    assert "its balance moves to" in limits.forbid(peer_id(ALICE), amount)
    assert limits.forbid(peer_id(BOB), amount) == ""
    assert world.group_service.accounts.account(ALICE) != KeyAccount()
