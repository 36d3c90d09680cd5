"""The chance that a lease of a new key brings a group, and what known nodes get back of room that was lent in vain."""

from pathlib import Path

from echo2.coordinator.leases.newcomer_odds import DEFAULT_OVERDUE_MS, REMEMBERED_ENDS, NewcomerOdds
from echo2.p2p.limits.origin import Origin
from echo2.protocol.leases import Lease
from tests.support.group_world import ALICE, World, group, name, opened


def test_before_any_lease_has_ended_a_new_key_is_counted_on() -> None:
    assert NewcomerOdds().chance(0) == 1.0


def test_overdue_leases_count_as_ended_without_a_group_until_it_comes() -> None:
    odds = NewcomerOdds()
    odds.end(learned=True)
    odds.give(b"a", 1_000.0, 0)
    odds.give(b"b", None, 0)
    assert odds.chance(1_000) == 1.0
    assert odds.chance(1_001) == 0.5
    assert odds.chance(DEFAULT_OVERDUE_MS + 1) == 1 / 3
    odds.close(b"a")
    odds.close(b"never given")
    odds.end(learned=True)
    assert odds.chance(1_001) == 1.0


def test_only_the_last_ends_count_and_an_absence_makes_no_lease_overdue() -> None:
    odds = NewcomerOdds()
    for _ in range(REMEMBERED_ENDS):
        odds.end(learned=False)
    assert odds.chance(0) == 0.0
    for _ in range(REMEMBERED_ENDS):
        odds.end(learned=True)
    odds.give(b"a", 1.0, 0)
    odds.forget()
    assert odds.chance(9) == 1.0


def idle_leases(world: World, keys: int) -> list[Lease]:
    """Let new keys of many parties take leases, as far as they get them."""
    given = []
    for number in range(keys):
        origin = Origin(f"line {number}", f"10.2.{number}.0/24")
        answer = world.group_service.lease(name("newcomer", number, 32), world.ask(), world.now, origin)
        if isinstance(answer, bytes):
            given.append(opened("lease", answer, Lease))
    return given


def known(world: World) -> None:
    """Let Alice become a known node whose groups take a second."""
    for _ in range(8):
        lease = world.lease(ALICE)
        world.now += 1_000
        world.submit(group(lease), ALICE)
        world.decide_all()


def test_known_nodes_get_the_room_back_that_was_lent_to_keys_which_bring_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, batch_groups=16, least_ms=600_000, first_ms=600_000)
    known(world)
    idle = idle_leases(world, 200)
    newcomers = world.group_service.leases.newcomers
    before = newcomers.chance(world.now)
    assert len(idle) > 8
    taken = 0
    while isinstance(world.group_service.lease(ALICE, world.ask(), world.now), bytes):
        taken += 1
    world.now += DEFAULT_OVERDUE_MS + 1
    again = 0
    while isinstance(world.group_service.lease(ALICE, world.ask(), world.now), bytes):
        again += 1
    assert before == 1.0
    assert newcomers.chance(world.now) < 0.1, "Alice's first groups came"
    assert again > 0


def test_leases_that_free_keys_give_back_at_once_lower_their_chance_alone(tmp_path: Path) -> None:
    world = World(tmp_path, batch_groups=16)
    known(world)
    for lease in idle_leases(world, REMEMBERED_ENDS):
        world.group_service.verdicts.expiries.end_early([lease.id], "declined", world.now)
    assert world.group_service.leases.newcomers.chance(world.now) < 1.0
    assert world.group_service.leases.window.last.windows == []


def test_newcomers_that_bring_groups_are_counted_on(tmp_path: Path) -> None:
    world = World(tmp_path, batch_groups=16)
    known(world)
    for lease in idle_leases(world, 4):
        world.submit(group(lease), lease.node)
        world.decide_all()
    assert world.group_service.leases.newcomers.chance(world.now) == 1.0
