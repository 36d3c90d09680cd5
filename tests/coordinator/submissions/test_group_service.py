"""The whole life of a group, from lease to batch, and the state after a restart."""

from echo2.coordinator.learner.batches.batch_groups import read
from echo2.ledger.ledger_entries import accrued_account
from echo2.p2p.identity import peer_id
from echo2.protocol.leases import Received
from tests.support.group_world import ALICE, TEXT, World, group, opened


def test_a_group_goes_from_lease_to_batch(world: World) -> None:
    leases = [world.lease(), world.lease()]
    for lease in leases:
        answer = world.submit(group(lease))
        assert opened("received", answer, Received).lease == lease.id
    assert world.group_service.draw(world.now) is None
    receipts = world.decide_all()
    assert [(r.verdict, r.trainable) for r in receipts] == [("accepted", True)] * 2
    batch = world.group_service.draw(world.now)
    assert batch is not None
    assert [g.id for g in batch] == [lease.id for lease in leases]
    first, _ = read(world.path, [g.id for g in batch])
    assert first.prompt.tolist() == leases[0].prompt
    assert [TEXT.decode(s.tokens.tolist()) for s in first.samples] == ["000", "111"]
    assert first.samples[0].behaviour.tolist() == [-0.5] * 4
    assert world.group_service.buffer.histogram == [2, 0, 0]
    assert world.group_service.draw(world.now) is None
    assert (
        world.group_service.ledger.balance(accrued_account(peer_id(ALICE))) == sum(r.weight for r in receipts) == 4 * 70
    )
    assert world.group_service.ledger.verify() == world.group_service.ledger.tip()


def test_a_restart_changes_nothing(world: World) -> None:
    world.accepted()
    waiting = world.lease()
    first = world.submit(group(waiting))
    open_lease = world.lease()
    before = (
        world.group_service.ledger.tip(),
        world.group_service.ledger.balances(),
        world.group_service.count_buffered(),
    )
    world.reopen()
    assert (
        world.group_service.ledger.verify(),
        world.group_service.ledger.balances(),
        world.group_service.count_buffered(),
    ) == before
    assert world.submit(group(waiting)) == first
    world.submit(group(open_lease))
    assert len(world.decide_all()) == 2
