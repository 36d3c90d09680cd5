"""The delivery record of a node: turnarounds, rate, and late groups only if no group came in time."""

from pathlib import Path

import pytest

from echo2.coordinator.leases.delivery_record import LAST_LEASES, LEAST_LEASES, MEASURED_GROUPS, read_delivery_record
from echo2.p2p.wire_types import encode
from tests.support.group_world import ALICE, BOB, World, group


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, batch_groups=100)


def submit_after(world: World, milliseconds: int) -> None:
    lease = world.lease(ALICE)
    world.now += milliseconds
    world.group_service.submissions.submit(ALICE, encode(group(lease)), world.now)


def test_a_node_without_groups_has_an_empty_record(world: World) -> None:
    world.lease(ALICE)
    record = read_delivery_record(world.group_service.database, ALICE)
    assert (record.turnarounds, record.rate, record.last) == ([], 0.0, 0)


def test_turnarounds_are_those_of_the_last_groups_newest_first(world: World) -> None:
    for number in range(1, MEASURED_GROUPS + 3):
        submit_after(world, 100 * number)
        world.now += 5_000
    record = read_delivery_record(world.group_service.database, ALICE)
    assert record.turnarounds == [100 * number for number in range(MEASURED_GROUPS + 2, 2, -1)]
    assert not record.late
    assert record.rate == MEASURED_GROUPS / sum(record.turnarounds)
    assert read_delivery_record(world.group_service.database, BOB).turnarounds == []


def test_late_groups_count_only_if_no_group_came_in_time(world: World) -> None:
    late = world.group_service.terms.most_ms
    submit_after(world, late)
    record = read_delivery_record(world.group_service.database, ALICE)
    assert (record.turnarounds, record.late, record.rate) == ([late], True, 0.0)
    submit_after(world, 300)
    record = read_delivery_record(world.group_service.database, ALICE)
    assert (record.turnarounds, record.late) == ([300], False)


def test_a_lost_lease_is_time_without_a_group_for_as_long_as_one_usually_takes(world: World) -> None:
    for _ in range(MEASURED_GROUPS):
        submit_after(world, 1_000)
    lease = world.lease(ALICE)
    assert lease.expires - lease.sent > 10_000
    world.now = lease.expires + 1
    world.group_service.tick(world.now)
    record = read_delivery_record(world.group_service.database, ALICE)
    assert record.lost
    assert record.rate == MEASURED_GROUPS / (MEASURED_GROUPS * 1_000 + 1_000)


def let_expire(world: World, leases: int) -> None:
    """Let so many leases expire, one an hour, and hand in a late group for the last."""
    for _ in range(leases):
        lease = world.lease(ALICE)
        world.now = lease.expires + 3_600_000
        world.group_service.tick(world.now)
    assert world.refused(group(lease)).code == "late"


def is_silent(world: World) -> bool:
    return read_delivery_record(world.group_service.database, ALICE).silent


def test_a_node_is_silent_once_none_of_its_last_eight_leases_came_in_time(world: World) -> None:
    submit_after(world, 100)
    let_expire(world, LAST_LEASES - 1)
    assert not is_silent(world), "one of the last eight came"
    let_expire(world, 1)
    assert is_silent(world)
    assert world.lease(ALICE).at_once == 1
    assert world.refusal(node=ALICE).code == "too-many-leases"
    world.now += 10_000_000
    world.group_service.tick(world.now)
    submit_after(world, 100)
    assert not is_silent(world), "and one group ends it"


def test_a_node_with_three_to_seven_leases_is_silent_if_none_of_all_came(world: World) -> None:
    let_expire(world, LEAST_LEASES - 1)
    assert not is_silent(world)
    let_expire(world, 1)
    assert is_silent(world)


def test_a_crash_that_ends_fewer_leases_than_the_last_eight_silences_no_node(world: World) -> None:
    submit_after(world, 100)
    crashed = [world.lease(ALICE) for _ in range(LAST_LEASES - 1)]
    world.now = crashed[-1].expires + 1
    world.group_service.tick(world.now)
    assert not is_silent(world)
