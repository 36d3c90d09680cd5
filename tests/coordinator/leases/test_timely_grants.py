"""Leases that would come back too late, while too much of an epoch's work did."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from echo2.coordinator.leases.timely_grants import TimelyGrants, comes_too_late, lasts_until
from tests.support.group_world import ALICE, group
from tests.support.market_world import NANO, TERMS, MarketWorld


def bounded(late: int) -> TimelyGrants:
    grants = TimelyGrants(Fraction(1, 10))
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


def test_a_lease_is_refused_that_would_rather_come_back_too_late() -> None:
    grants = bounded(50)

    def refuses(
        steps: int, step: float | None = 1_000, turnarounds: Sequence[int] = (1_500, 2_500), verdict: int = 0
    ) -> bool:
        return comes_too_late(grants.window(steps, step, verdict), turnarounds)

    assert refuses(1)
    assert not refuses(3)
    assert refuses(3, verdict=1_500)
    assert not refuses(1, turnarounds=())
    assert not refuses(1, turnarounds=(0, 0)), "within the millisecond"
    assert not refuses(1, step=None)
    assert not comes_too_late(bounded(0).window(0, 1_000, 0), [2_000])


def test_a_lease_ends_once_its_version_is_too_old_while_leases_are_bounded() -> None:
    window = bounded(50).window(3, 1_000, 400)
    assert lasts_until(9_000, window, [2_000], 500) == 2_600
    assert lasts_until(2_000, window, [2_000], 500) == 2_000
    assert lasts_until(9_000, window, [2_000], 5_000) == 5_000  # no lease of the run is shorter
    assert lasts_until(9_000, window, [], 500) == 9_000  # a node that was not measured
    assert lasts_until(9_000, bounded(0).window(3, 1_000, 400), [2_000], 500) == 9_000


def test_a_node_whose_groups_come_too_late_gets_no_lease_in_the_next_epoch(tmp_path: Path) -> None:
    world = MarketWorld(tmp_path, TERMS._replace(untrainable=100), batch_groups=99, least_ms=1_000)
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
    world.group_service.leases.window.last.steps = [1_000.0] * 4
    assert world.refusal(6).code == "later"
    world.group_service.leases.window.last.steps = [5_000.0] * 4
    lease = world.lease(version=6)
    assert lease.version == 6
    assert 14_900 < lease.expires - lease.sent < 15_000  # S = 2: too old for the fourth step, less the verdict's time
    world.now += TERMS.epoch
    world.open_with({ALICE: NANO // 10})
    assert not world.group_service.leases.timely.bounded
    longer = world.lease(version=6)
    assert longer.expires - longer.sent > 19_000  # by its own turnaround
