"""The facts that decide a lease request: the node's share, its lifetime, and the holder of its expiry budget."""

from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.leases.expiry_budgets import EXPIRY_PAUSE_MS, FREE_EXPIRIES, FREE_OF_PARTY
from echo2.coordinator.leases.lease_admission import LeaseAdmission, LeaseOwner
from echo2.coordinator.leases.lease_lifetime import LifetimeBounds
from echo2.p2p.limits.origin import Origin
from echo2.protocol.leases import Lease
from echo2.protocol.requests import Refusal
from tests.support.fleet import key, origin_of, request_lease
from tests.support.group_world import ALICE, SPEC, World, group, opened

BOUNDS = LifetimeBounds(first=300_000, least=20_000, most=900_000)
HOME = Origin("198.51.100.0/24", "198.51.100.7")


def admission_of(world: World) -> LeaseAdmission:
    return LeaseAdmission(world.group_service.database, BOUNDS, False, world.group_service.accounts, per_node=3)


def test_a_new_key_is_held_to_account_by_its_connection_and_a_known_one_by_itself(world: World) -> None:
    admission = admission_of(world)
    new = admission.demand(ALICE, admission.rank(ALICE, world.now), HOME, 1, world.now)
    assert (new.rank, new.requester.share, new.holders[0]) == ("new", "new", HOME.connection.encode())
    assert new.lifetime.lasts == BOUNDS.first
    world.group_service.accounts.remark(ALICE, "node.vouched", "tested", world.now)
    known = admission.demand(ALICE, admission.rank(ALICE, world.now), HOME, 1, world.now)
    assert (known.rank, known.requester.share, known.holders) == ("known", "known", [ALICE])


def test_expiries_beyond_the_budget_deny_a_lease_until_the_pause_ends(world: World) -> None:
    admission = admission_of(world)
    demand = admission.demand(ALICE, "known", HOME, 1, world.now)
    owner = LeaseOwner("known", ALICE, HOME, "")
    for _ in range(FREE_EXPIRIES + 1):
        assert admission.denial_despite_room(demand, world.now) is None
        admission.on_expiry(owner, world.now)
    denied = admission.denial_despite_room(demand, world.now)
    assert (denied[0].code, denied[1]) == ("expiries", EXPIRY_PAUSE_MS)
    assert admission.denial_despite_room(demand, world.now + EXPIRY_PAUSE_MS) is None


def test_the_owner_of_a_lease_is_known_until_it_ends(world: World) -> None:
    admission = admission_of(world)
    lease = world.lease(ALICE)
    owner = admission.owner_of_lease(lease.id)
    assert (owner.node, owner.reasons) == (ALICE, "")
    world.now = lease.expires + 1
    assert world.group_service.tick(world.now) == 1
    assert admission.owner_of_lease(lease.id) is None


def faulty_groups(world: World, keys: Iterable[bytes], connection: str) -> int:
    """Let each key ask for a lease and submit a faulty group at once, one key per 100 ms; return how many got one."""
    given = 0
    for node in keys:
        answer = request_lease(world, connection, node)
        world.now += 100
        if isinstance(answer, Lease):
            assert world.refused(group(answer, rollouts=[]), node).code == "incomplete"
            given += 1
    return given


def test_faulty_groups_of_ever_new_keys_are_bounded_per_connection(world: World) -> None:
    """Each leaves some 2.5 kB in run.sqlite for good. Without the bound, one connection wrote 25 kB/s so."""
    assert faulty_groups(world, (key("fresh", number) for number in range(200)), "crowd") == FREE_EXPIRIES + 2
    assert isinstance(request_lease(world, "elsewhere"), Lease)
    blocked = request_lease(world, "crowd")
    assert blocked.code == "expiries"


@pytest.mark.parametrize("party", ["192.0.2.0/24", "2001:db8::/48", "relay"])
def test_faulty_groups_of_ever_new_connections_are_bounded_per_party(world: World, party: str) -> None:
    """A peer id is as free as a key: before, each new connection of a subnet had a budget of its own."""
    given = 0
    for number in range(200):
        connection, node = f"peer {number}", key("fresh", number)
        origin = Origin(connection, party if "/" in party else f"{party}/{connection}")
        answer = world.group_service.lease(node, world.ask(), world.now, origin)
        world.now += 100
        if not isinstance(answer, Refusal):
            world.refused(group(opened("lease", answer, Lease), rollouts=[]), node)
            given += 1
    assert given == FREE_OF_PARTY + 2
    assert isinstance(request_lease(world, "elsewhere"), Lease)


def test_a_crash_of_a_node_with_many_leases_is_forgiven_once_an_hour(tmp_path: Path) -> None:
    world = World(tmp_path, batch_groups=20)
    world.group_service.accounts.remark(ALICE, "node.vouched", "tested", world.now)
    for _ in range(3):
        world.accepted(ALICE)
    pauses = []
    for _ in range(2):
        leases = [world.lease(ALICE) for _ in range(FREE_EXPIRIES + 2)]
        world.now = leases[-1].expires + 1
        while world.group_service.tick(world.now):
            pass
        answer = request_lease(world, "alice", ALICE)
        pauses.append(answer.code if isinstance(answer, Refusal) else "")
        world.now += EXPIRY_PAUSE_MS << FREE_EXPIRIES + 2
    assert pauses == ["", "expiries"], "all of them at once, then further ones"


def test_faulty_groups_of_a_known_key_are_strikes_and_nothing_else(world: World) -> None:
    world.group_service.accounts.remark(ALICE, "node.vouched", "tested", world.now)
    assert faulty_groups(world, [ALICE] * 2, "crowd") == 2
    assert world.group_service.database.value("SELECT count(*) FROM budgets") == 0


@pytest.mark.parametrize("takes", [None, 14_000_000])
def test_a_false_word_keeps_the_share_of_new_keys_no_longer_than_none(tmp_path: Path, takes: int | None) -> None:
    """Of S = 0, with leases of up to 4 h. Before, 7 false words kept an honest newcomer out for more than 4 h, and ten
    groups of known keys took 1,520 s in place of 605 s."""
    spec = msgspec.structs.replace(SPEC, staleness=0)
    world = World(tmp_path, spec=spec, staleness=0, batch_groups=8, most_ms=14_400_000)
    known = [key("known", number) for number in range(12)]
    for node in known:
        world.group_service.accounts.remark(node, "node.vouched", "tested", world.now)
    assert isinstance(request_lease(world, "known 0", known[0]), Lease)
    for number in range(60):
        world.group_service.lease(key("new", number), world.ask(takes=takes), world.now, origin_of(f"new {number}"))
        world.now += 50
    began, given, newcomer = world.now, 0, None
    while world.now - began < 620_000 and not (given >= 10 and newcomer):
        given += sum(isinstance(request_lease(world, f"known {i}", node), Lease) for i, node in enumerate(known))
        if newcomer is None and isinstance(request_lease(world, "honest"), Lease):
            newcomer = world.now
        world.now += 5_000
        world.group_service.tick(world.now)
    assert given >= 10
    assert newcomer is not None


def leases_without_a_group(world: World, takes: int | None) -> int:
    """Let ever new keys of one subnet ask for an hour, and return nothing; return how many leases they got."""
    given, began = 0, world.now
    for number in range(360):
        origin = Origin(f"192.0.2.{number % 250}", "192.0.2.0/24")
        answer = world.group_service.lease(key("new", number), world.ask(takes=takes), world.now, origin)
        given += isinstance(answer, bytes)
        world.now += 10_000
        while world.group_service.tick(world.now):
            pass
    assert world.now - began == 3_600_000
    return given


def test_false_words_put_off_no_budget_of_their_party(tmp_path: Path) -> None:
    """A longer lease is charged later: before, one subnet got 1,440 leases in two hours, and 368 without a word."""
    given = []
    for name, takes in (("silent", None), ("false", 14_000_000)):
        (tmp_path / name).mkdir()
        world = World(tmp_path / name, batch_groups=200, most_ms=14_400_000)
        given.append(leases_without_a_group(world, takes))
    assert given[1] <= given[0] + FREE_OF_PARTY
