"""Leases that would come back too late, while too much of an epoch's work did."""

from fractions import Fraction
from pathlib import Path

from coordinator.rollouts.timely_grants import TimelyGrants
from tests.support.group_world import ALICE, group
from tests.support.market_world import NANO, TERMS, MarketWorld


def bounded(late: int) -> TimelyGrants:
    grants = TimelyGrants()
    grants.most = Fraction(1, 10)
    grants.note(100 - late, late=False)
    grants.note(late, late=True)
    grants.turn_over()
    return grants


def test_leases_are_bounded_while_more_than_the_share_came_too_late() -> None:
    assert not bounded(10).bounded
    assert bounded(11).bounded
    grants = bounded(11)
    grants.turn_over()  # an epoch without work
    assert not grants.bounded


def test_a_lease_is_refused_whose_chance_to_come_back_is_below_a_half() -> None:
    grants = bounded(50)
    assert grants.refuses(steps=1, step=1_000, turnaround=2_000, verdict=0, spread=0.3)
    assert not grants.refuses(steps=3, step=1_000, turnaround=2_000, verdict=0, spread=0.3)
    assert grants.refuses(steps=3, step=1_000, turnaround=2_000, verdict=1_500, spread=0.3)
    assert not grants.refuses(steps=1, step=1_000, turnaround=None, verdict=0, spread=0.3)
    assert not grants.refuses(steps=1, step=None, turnaround=2_000, verdict=0, spread=0.3)
    assert not bounded(0).refuses(steps=0, step=1_000, turnaround=2_000, verdict=0, spread=0.3)


def test_a_node_whose_groups_come_too_late_gets_no_lease_in_the_next_epoch(tmp_path: Path) -> None:
    world = MarketWorld(tmp_path, TERMS._replace(untrainable=100), batch_groups=99)
    world.open_with({ALICE: NANO // 10})
    world.accepted()  # before it, there is one lease at a time
    for step in (3, 6):
        leases = [world.lease(version=step - 3) for _ in range(3)]
        world.now += 5_000
        world.learner_at(step)
        for lease in leases:
            world.submit(group(lease))
        receipts = world.decide_all()
        assert [one.trainable for one in receipts] == [False] * 3
        assert all(one.price for one in receipts)  # they are paid all the same
    world.now += TERMS.epoch
    world.open_with({ALICE: NANO // 10})
    assert world.group_service.leases.timely.bounded
    world.group_service.leases.pacing.times.steps = [1_000.0] * 4
    assert world.refusal(6).code == "later"
    world.group_service.leases.pacing.times.steps = [10_000.0] * 4
    assert world.lease(version=6).version == 6
