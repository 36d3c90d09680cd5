"""Nodes that are quick and reliable get the prompts with long answers."""

from pathlib import Path

from echo2.coordinator.leases.quick_nodes import FEWEST
from echo2.protocol.leases import Lease
from tests.support.fleet import key, origin_of, request_lease
from tests.support.group_world import World, group

QUICK, SLOW = key("quick"), key("slow")


def brought(world: World, node: bytes, milliseconds: int, text: str) -> None:
    lease = request_lease(world, node.hex(), node)
    assert isinstance(lease, Lease)
    world.now += milliseconds
    world.submit(group(lease, [text, text]), node)
    world.decide_all()


def worked(tmp_path: Path) -> World:
    world = World(tmp_path, batch_groups=500, by_length=True)
    for _ in range(FEWEST):
        brought(world, QUICK, 4_000, "1234567")
        brought(world, SLOW, 2_000, "1")
    return world


def longest(world: World, node: bytes) -> bool | None:
    admission, issuer = world.group_service.leases.admission, world.group_service.issuer
    rank = admission.rank(node, world.now)
    return issuer._longest(admission.demand(node, rank, origin_of(node.hex()), 1, world.now))


def test_speed_is_by_tokens_so_long_groups_make_no_node_slow(tmp_path: Path) -> None:
    world = World(tmp_path, batch_groups=500, by_length=True)
    assert longest(world, QUICK) is None
    for _ in range(FEWEST):
        brought(world, QUICK, 4_000, "1234567")
        brought(world, SLOW, 3_900, "1")
    assert longest(world, QUICK)
    assert longest(world, SLOW) is False
    world.close()


def test_a_node_that_returned_a_lease_and_one_that_is_new_get_short_prompts(tmp_path: Path) -> None:
    world = worked(tmp_path)
    assert longest(world, QUICK)
    assert longest(world, key("new")) is False
    lost = request_lease(world, QUICK.hex(), QUICK)
    assert isinstance(lost, Lease)
    world.now = lost.expires + 1
    world.group_service.tick(world.now)
    assert longest(world, QUICK) is False
    world.close()


def test_without_the_setting_nobody_is_measured(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert longest(world, QUICK) is None
    world.close()
