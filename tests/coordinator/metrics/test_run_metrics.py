"""Turnaround and supply are measured from a run's own groups."""

import pytest

from tests.support.group_world import ALICE, HELLO, World, group


def test_a_run_measures_itself(world: World) -> None:
    world.group_service.registry.register(ALICE, HELLO, None, world.now)
    assert world.capacity(None).supply == 0.0
    for _ in range(2):
        lease = world.lease()
        world.now += 1_990
        world.submit(group(lease))
        world.now += 500
        world.decide_all()
    view = world.capacity(1.0)
    assert view.turnaround_seconds == 2.5
    assert view.supply == pytest.approx(1.0)
    assert view.rollouts_per_step == 4.0
    assert view.need is None


def test_a_run_whose_groups_wait_for_each_other_is_measured_by_those_that_hardly_did(world: World) -> None:
    world.group_service.registry.register(ALICE, HELLO, None, world.now)
    for _ in range(3):
        for waited, lease in zip((1_000, 8_000), [world.lease() for _ in range(2)], strict=True):
            world.now += waited
            world.submit(group(lease))
            world.decide_all()
    assert world.capacity(1.0).turnaround_seconds == pytest.approx(1.0, abs=0.05)
