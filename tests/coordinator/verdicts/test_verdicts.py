"""The ends of leases: receipts, ledger entries and pay."""

import msgspec
import pytest

from echo2.coordinator.verdicts.lease_outcomes import LeaseOutcome
from echo2.ledger.ledger_entries import ESCROW, FUND, accrued_account
from echo2.p2p.identity import peer_id
from echo2.protocol.group_weights import whole_weight
from echo2.protocol.leases import Receipt, VerdictsRequest
from tests.support.group_world import ALICE, RUN, World, group, honest_scores, opened, rollout


@pytest.mark.parametrize("swept", [True, False])
def test_received_after_expiry_is_refused_with_a_receipt_that_names_the_expiry(world: World, swept: bool) -> None:
    world.group_service.accounts.remark(ALICE, "node.vouched", "a key that is known", world.now)
    lease = world.lease()
    world.now = lease.expires
    if swept:
        world.now += 1
        assert world.group_service.tick(world.now) == 1
    receipt = world.refused(group(lease))
    assert (receipt.code, receipt.weight) == ("late", 0)
    assert receipt.reason.startswith("Received 1")
    entry = world.group_service.ledger.find(f"lease:{lease.id.hex()}")
    assert (entry.kind, entry.seq, entry.hash) == ("lease.expired", receipt.entry, receipt.entry_hash)
    assert world.group_service.ledger.tip().entries == 2
    assert world.group_service.list_undecided() == []
    assert world.group_service.tick(world.now) == 0


def test_a_lease_that_never_came_back_has_one_entry(world: World) -> None:
    world.group_service.accounts.remark(ALICE, "node.vouched", "a key that is known", world.now)
    lease = world.lease()
    world.now = lease.expires + 1
    assert [world.group_service.tick(world.now) for _ in range(3)] == [1, 0, 0]
    (entry,) = world.group_service.ledger.entries(after=1)
    end = msgspec.msgpack.decode(entry.facts, type=LeaseOutcome)
    assert (entry.kind, end.code, end.received, end.expires) == ("lease.expired", "expired", None, lease.expires)
    assert world.group_service.submissions.verdicts(ALICE, VerdictsRequest(leases=[lease.id])).unknown == [lease.id]


def test_a_receipt_states_all_facts_that_the_node_needs_offline(world: World) -> None:
    lease = world.lease()
    world.submit(group(lease))
    world.decide_all()
    (sealed,) = world.group_service.submissions.verdicts(ALICE, VerdictsRequest(leases=[lease.id])).receipts
    assert len(sealed) <= 1024
    receipt = opened("receipt", sealed, Receipt)
    assert (receipt.run, receipt.node, receipt.lease, receipt.version) == (RUN, ALICE, lease.id, 0)
    assert (receipt.verdict, receipt.code, receipt.reason, receipt.trainable) == ("accepted", "ok", "", True)
    entry = world.group_service.ledger.find(f"lease:{lease.id.hex()}")
    assert (receipt.entry, receipt.entry_hash) == (entry.seq, entry.hash)
    assert dict(entry.postings) == {ESCROW: -receipt.weight, accrued_account(peer_id(ALICE)): receipt.weight}
    end = msgspec.msgpack.decode(entry.facts, type=LeaseOutcome)
    assert (end.rollouts, end.tokens_in, end.tokens_out, end.weight) == (2, 2 * 5, 2 * 4, receipt.weight)


def test_a_refused_group_is_paid_nothing_and_never_drawn(world: World) -> None:
    lease = world.lease()
    world.submit(group(lease))
    (waiting,) = world.group_service.list_undecided()
    scores = honest_scores(waiting.submission)
    scores[1].margins[2] = 0.01
    receipt = world.decide(waiting, scores)
    assert (receipt.verdict, receipt.code, receipt.weight) == ("refused", "seeded-choice", 0)
    assert "Sample 1, sampled token 2" in receipt.reason
    assert world.group_service.count_buffered() == 0
    assert world.group_service.ledger.balances() == {}
    assert world.decide(waiting, honest_scores(waiting.submission)) == receipt


def test_a_group_that_cannot_be_scored_is_the_operators_fault(world: World) -> None:
    world.submit(group(world.lease()))
    (waiting,) = world.group_service.list_undecided()
    receipt = opened("receipt", world.group_service.refuse_unscorable(waiting, world.now), Receipt)
    assert (receipt.verdict, receipt.code) == ("refused", "not-scorable")


def test_given_tokens_of_an_environment_count_as_input(world: World) -> None:
    lease = world.lease()
    long = [rollout(lease, "12345"), rollout(lease, "1")]
    world.submit(group(lease, rollouts=long))
    (receipt,) = world.decide_all()
    assert receipt.weight == whole_weight(None, 5 + 6, [()]) + whole_weight(None, 5 + 2, [()])


def test_points_come_from_the_fund(world: World) -> None:
    for _ in range(3):
        world.accepted()
        world.group_service.draw(world.now)
    balances = world.group_service.ledger.balances()
    assert sum(balances.values()) == 0
    assert [account for account, amount in balances.items() if amount < 0] == [FUND]
