"""No honest group is late because this coordinator was too busy to take it, and no hoard lasts longer by that."""

from pathlib import Path

import pytest

from echo2.coordinator.leases.busy_nodes import BUSY_STANDS_MS
from echo2.protocol.leases import Lease
from tests.support.fleet import key, request_lease
from tests.support.group_world import ALICE, BOB, World, group

SECOND = 1_000


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, batch_groups=100)


def leased(world: World, connection: str, node: bytes) -> Lease:
    answer = request_lease(world, connection, node)
    assert isinstance(answer, Lease)
    return answer


def busy_until(world: World, end: int, *connections: str) -> None:
    """Answer these connections BUSY until `end`, ms, with a tick a second."""
    while world.now < end:
        world.now += SECOND
        world.group_service.tick(world.now, connections)


def expires(world: World, lease: Lease) -> int:
    record = world.group_service.leases.find(lease.id)
    return record.expires


def test_the_clock_of_a_lease_stands_while_its_node_is_answered_busy(world: World) -> None:
    mine, others = leased(world, "mine", ALICE), leased(world, "others", BOB)
    world.now = mine.expires - SECOND
    busy_until(world, world.now + 60 * SECOND, "mine")
    assert expires(world, mine) == mine.expires + 59 * SECOND + BUSY_STANDS_MS
    assert expires(world, others) == others.expires
    world.now = expires(world, mine) - SECOND
    world.submit(group(mine), ALICE)
    (receipt,) = world.decide_all()
    assert receipt.verdict == "accepted"
    assert world.refused(group(others), BOB).code == "late"


def test_one_busy_answer_is_worth_the_time_until_the_request_is_repeated(world: World) -> None:
    lease = leased(world, "mine", ALICE)
    for _ in range(2):
        busy_until(world, world.now + SECOND, "mine")
        busy_until(world, world.now + 60 * SECOND)
    assert expires(world, lease) == lease.expires + 2 * BUSY_STANDS_MS


def test_a_clock_stands_for_one_lifetime_in_all_also_across_a_restart(world: World) -> None:
    lease = leased(world, "mine", ALICE)
    life = lease.expires - lease.sent
    busy_until(world, world.now + life, "mine")
    world.reopen()
    busy_until(world, lease.expires + life - SECOND, "mine")
    assert lease.expires + life - BUSY_STANDS_MS < expires(world, lease) <= lease.expires + life
    busy_until(world, lease.expires + life + SECOND, "mine")
    assert world.refused(group(lease), ALICE).code == "late"


def test_the_clock_of_a_silent_node_never_stands(world: World) -> None:
    """A flood would keep alive what it hoards."""
    hoarder = key("hoarder")
    world.group_service.accounts.remark(hoarder, "node.vouched", "tested", world.now)
    for _ in range(3):
        world.now = leased(world, "flood", hoarder).expires + 1
        world.group_service.tick(world.now)
    lease = leased(world, "flood", hoarder)
    busy_until(world, world.now + 60 * SECOND, "flood")
    assert expires(world, lease) == lease.expires
