"""Leases end, make room again, and outlive absences and clocks that are set back."""

from pathlib import Path

import pytest

from echo2.coordinator.metrics import run_metrics
from tests.support.group_world import ALICE, BOB, World, group


@pytest.mark.slow
def test_leases_of_many_nodes_that_left_at_once_end_a_few_at_a_time(tmp_path: Path) -> None:
    """No pause of the event loop above 50 ms. On 439044d one tick ends all 200."""
    world = World(tmp_path, batch_groups=100, per_node=1000)
    for _ in range(200):
        world.lease(version=0)
    world.now += 3_600_000
    ended = [world.group_service.tick(world.now) for _ in range(5)]
    assert sum(ended) == 200
    assert max(ended) <= 64


@pytest.mark.slow
def test_shed_groups_make_room_again_for_ever(world: World) -> None:
    """A running total would give no lease after a few rounds: it would count shed groups as delivered."""
    for step in range(0, 90, 3):
        world.learner_at(step)
        for node in (ALICE, BOB) * 3:
            world.submit(group(world.lease(node, step)), node)
        assert world.refusal(step).code in ("no-room", "undecided")
        world.decide_all()
    assert world.group_service.draw(world.now) is not None


def test_an_expired_lease_makes_room(world: World) -> None:
    leases = [world.lease() for _ in range(6)]
    world.now = leases[-1].expires
    assert world.group_service.tick(world.now) == 0
    assert world.refusal().code == "no-room"
    world.now += 1
    assert world.group_service.tick(world.now) == 6
    world.lease(BOB)


def test_a_late_lease_leaves_its_place_and_its_group_is_welcome(world: World) -> None:
    for _ in range(3):
        lease = world.lease()
        world.now += 10_000
        world.submit(group(lease))
        world.decide_all()
    progress = world.group_service.progress
    assert progress is not None
    lease = world.lease()
    buffered = world.group_service.count_buffered()
    loads = [world.group_service.leases.load(progress, lease.sent + after) for after in (20_000, 20_021)]
    assert [load.on_their_way(buffered) for load in loads] == [buffered + 1, buffered]
    rows = [world.group_service.leases.on_their_way(progress.era, lease.sent + after) for after in (20_000, 20_021)]
    assert [sum(one.values()) for one in rows] == [1, 0], "it lets no other lease be recalled"
    world.now = lease.sent + 20_021
    world.submit(group(lease))
    assert [receipt.verdict for receipt in world.decide_all()] == ["accepted"], "and its group is welcome"
    assert world.group_service.leases.load(progress, world.now).late == 0


def test_the_coordinators_absence_costs_no_node(world: World) -> None:
    lease = world.lease()
    world.now += 1_000
    world.group_service.tick(world.now)
    world.reopen(away=10_000_000)
    assert world.now > lease.expires
    assert world.submit(group(lease))
    (receipt,) = world.decide_all()
    assert receipt.verdict == "accepted"
    assert run_metrics.quick_turnaround(world.group_service.database) == 1_010, "an absence is no turnaround"


def test_a_lease_from_ahead_begins_anew_where_the_clock_is_set_back(world: World) -> None:
    """Otherwise a node that left would keep its place for as long as the clock was ahead."""
    day = 86_400_000
    world.group_service.tick(world.now)
    world.now += day
    world.group_service.tick(world.now)
    ahead = world.lease(BOB)
    world.reopen(away=-day)
    record = world.group_service.leases.find(ahead.id)
    assert record.expires - world.now == ahead.expires - ahead.sent
    world.now = record.expires + 1
    world.group_service.tick(world.now)
    assert world.lease(BOB), "its place is free again"


def test_absence_is_given_back_once_and_only_to_open_leases(world: World) -> None:
    expired, still = world.lease(), world.lease()
    world.group_service.tick(world.now)
    world.group_service.database.do("UPDATE leases SET expires = ? WHERE id = ?", (world.now - 1, expired.id))
    world.reopen(away=1_000)
    world.reopen(away=0)
    record = world.group_service.leases.find(still.id)
    assert record.expires == still.expires + 1_000
    gone = world.group_service.leases.find(expired.id)
    assert gone.state == "expired"


def test_the_scorer_knows_which_versions_it_must_reach(world: World) -> None:
    first = world.lease(version=0)
    world.learner_at(1)
    world.lease(version=1)
    assert world.group_service.leases.oldest_in_use() == (1, 0)
    world.submit(group(first))
    assert world.group_service.leases.oldest_in_use() == (1, 0)
    world.decide_all()
    assert world.group_service.leases.oldest_in_use() == (1, 1)
    world.now += 3_600_000
    world.group_service.tick(world.now)
    assert world.group_service.leases.oldest_in_use() is None


def test_a_version_is_never_published_with_other_weights(world: World) -> None:
    world.publish(0)
    with pytest.raises(ValueError, match="another root"):
        world.group_service.leases.publish(1, 0, bytes(32), world.now)
