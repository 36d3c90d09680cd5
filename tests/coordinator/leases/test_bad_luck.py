"""Honest nodes with bad luck lose nothing that they need by the rules that hold hoarders off."""

from pathlib import Path

import pytest

from echo2.coordinator.leases.lease_admission import LeaseDemand
from echo2.p2p.limits.origin import Origin
from echo2.protocol.leases import Lease
from echo2.runtime.units import DAY
from tests.support.fleet import request_lease
from tests.support.group_world import ALICE, World, group

HOME = "198.51.100.7"
HOUR = 3_600_000


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, batch_groups=400, per_node=3)


def leased(world: World) -> Lease:
    answer = request_lease(world, HOME, ALICE)
    assert isinstance(answer, Lease), answer
    return answer


def worked(world: World, groups: int, lost: int = 0) -> None:
    """Work for 6 s on each of so many groups, one after the other, and never get back to each `lost`-th one."""
    for number in range(groups):
        lease = leased(world)
        world.now += 6_000
        world.group_service.tick(world.now)
        if not lost or number % lost:
            world.submit(group(lease), ALICE)
            world.decide_all()


def demand(world: World) -> LeaseDemand:
    admission = world.group_service.leases.admission
    return admission.demand(ALICE, admission.rank(ALICE, world.now), Origin(HOME, HOME), 8, world.now)


def expire_all(world: World) -> None:
    while world.group_service.tick(world.now):
        pass


@pytest.mark.slow
def test_a_node_that_loses_each_tenth_lease_is_never_refused_one(world: World) -> None:
    worked(world, 40)
    worked(world, 600, lost=10)
    assert world.group_service.database.value("SELECT count(*) FROM leases WHERE state = 'expired'") > 50
    assert demand(world).requester.most_open == 3


def test_a_node_that_was_off_for_a_night_has_all_its_leases_at_once(world: World) -> None:
    worked(world, 10)
    for _ in range(3):
        leased(world)
    world.now += 8 * HOUR
    expire_all(world)
    for _ in range(3):
        leased(world)


def test_a_node_that_was_unplugged_for_a_week_is_known_and_has_its_leases_at_once(world: World) -> None:
    worked(world, 3)
    leased(world)
    world.now += 7 * DAY
    expire_all(world)
    assert demand(world).rank == "known"
    for _ in range(3):
        leased(world)


def test_a_crash_with_many_leases_open_costs_one_lease_at_a_time_until_a_group_comes(tmp_path: Path) -> None:
    world = World(tmp_path, batch_groups=400, per_node=16)
    worked(world, 3)
    for _ in range(16):
        leased(world)
    world.now += 8 * HOUR
    expire_all(world)
    assert demand(world).requester.most_open == 1
    worked(world, 1)
    assert demand(world).requester.most_open == 16
    for _ in range(16):
        leased(world)
