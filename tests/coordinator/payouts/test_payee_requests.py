"""A node states its payout account: what is taken, from when on it counts, and what the ledger says of it."""

from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.payouts.plan_files import PayoutFolder
from echo2.coordinator.payouts.stated_accounts import STATED_FILE, AccountSet, StatedAccounts
from echo2.ledger.payout_facts import commitment
from echo2.p2p.identity import peer_id
from echo2.protocol.market import PayeeRequest, PayeeResponse
from echo2.runtime.errors import LocalFault
from echo2.runtime.units import DAY
from tests.support.group_world import ALICE, BOB
from tests.support.market_world import NANO, MarketWorld


@pytest.fixture
def world(tmp_path: Path) -> MarketWorld:
    world = MarketWorld(tmp_path)
    world.open_with({ALICE: NANO // 10})
    world.accepted()
    return world


def stated(world: MarketWorld, account: str | None, node: bytes = ALICE) -> PayeeResponse:
    answer = world.market.payees.answer(node, PayeeRequest(account=account), world.now)
    assert isinstance(answer, PayeeResponse), answer
    return answer


def refused(world: MarketWorld, account: str, node: bytes = ALICE) -> str:
    answer = world.market.payees.answer(node, PayeeRequest(account=account), world.now)
    return answer.sentence


def test_an_account_is_in_force_after_a_day_and_the_ledger_has_its_commitment_alone(world: MarketWorld) -> None:
    answer = stated(world, "alice at a bank")
    assert answer.commitment is None
    assert answer.coming == commitment("alice at a bank", answer.salt)
    assert answer.since == world.now + DAY
    (entry,) = world.entries("account.set")
    fact = msgspec.msgpack.decode(entry.facts, type=AccountSet)
    assert (fact.node, fact.account, fact.since) == (peer_id(ALICE), answer.coming, answer.since)
    folder = PayoutFolder(world.path.parent)
    assert (folder.path / STATED_FILE).stat().st_mode & 0o777 == 0o600
    assert (folder.payees(world.now), folder.coming(world.now)) == ({}, {peer_id(ALICE): answer.since})
    with pytest.raises(LocalFault, match="no node has stated an account, and there is no"):
        PayoutFolder(world.path.parent / "other").payees(world.now)
    world.reopen(away=DAY)
    assert stated(world, None).commitment == answer.coming
    assert folder.payees(world.now)[peer_id(ALICE)].account == "alice at a bank"
    assert folder.coming(world.now) == {}
    assert all(b"alice" not in one.facts for one in world.entries())


def test_the_same_account_once_more_changes_nothing(world: MarketWorld) -> None:
    first = stated(world, "alice")
    world.now += 1_000
    assert stated(world, "alice") == first
    assert len(world.entries("account.set")) == 1


def test_a_thiefs_account_is_replaced_before_it_is_in_force(world: MarketWorld) -> None:
    stated(world, "alice")
    world.now += DAY
    stated(world, "a thief")
    assert "12 hours after the last: again in 720 minutes" in refused(world, "alice")
    for half in range(8):
        world.now += DAY // 2
        stated(world, "alice" if half % 2 == 0 else "a thief")
        assert "again in 720 minutes" in refused(world, "a third"), "two a day are two entries of the ledger a day"
    assert PayoutFolder(world.path.parent).payees(world.now)[peer_id(ALICE)].account == "alice"


def test_an_account_changes_once_a_day_and_until_then_the_one_before_is_paid(world: MarketWorld) -> None:
    first = stated(world, "alice")
    assert "again in 720 minutes" in refused(world, "a thief")
    world.now += DAY
    second = stated(world, "a thief")
    assert (second.commitment, second.since) == (first.coming, world.now + DAY)
    assert PayoutFolder(world.path.parent).payees(world.now)[peer_id(ALICE)].account == "alice"


@pytest.mark.parametrize("account", ["=1+1", "two\nlines", " blank", "x" * 201])
def test_an_account_that_could_do_harm_is_refused_with_a_sentence(world: MarketWorld, account: str) -> None:
    assert "The account is not taken" in refused(world, account)
    assert not world.entries("account.set")


def test_a_free_key_states_none(world: MarketWorld) -> None:
    assert "once a group of it was accepted" in refused(world, "bob", BOB)


def test_a_file_that_others_may_read_is_refused(world: MarketWorld) -> None:
    stated(world, "alice")
    path = PayoutFolder(world.path.parent).path
    (path / STATED_FILE).chmod(0o644)
    with pytest.raises(LocalFault, match="others may read"):
        StatedAccounts(path)


def test_nodes_with_one_account_are_one_owner(world: MarketWorld) -> None:
    world.open_with({ALICE: NANO // 10, BOB: NANO // 10})
    world.accepted(BOB)
    stated(world, "one owner")
    stated(world, "one owner", BOB)
    world.now += DAY
    for _ in range(200):
        world.now += 1_000
        for node in (ALICE, BOB):
            world.asks(node)
        world.tick()
    assert world.entries("owners.grouped")
    assert b"one owner" not in world.entries("owners.grouped")[0].facts
