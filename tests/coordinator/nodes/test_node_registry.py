"""The registry of nodes, and the rows of the page."""

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.coordinator.nodes import node_registry as roster_module
from echo2.coordinator.nodes.node_registry import MOST_NAMED_PEERS, NEW_ARRIVAL_MS, SAVE_CONTACTS_MS
from echo2.p2p.discovery.peer_records import RECORD_LIFE_MS, RecordIssuer, VerifiedRecord, decode_own
from echo2.p2p.identity import peer_id, public_bytes, public_key
from echo2.protocol.requests import RankResponse
from tests.support.group_world import ALICE, BOB, HELLO, RUN, T0, World, group
from tests.support.ledger_sums import check_sums


def test_a_node_keeps_its_row_when_it_says_hello_again(world: World) -> None:
    registry = world.group_service.registry
    registry.register(ALICE, HELLO, None, T0)
    registry.register(ALICE, msgspec.structs.replace(HELLO, name="b"), None, T0 + 5)
    (row,) = world.rows([peer_id(ALICE)])
    assert (row.id, row.name, row.last_seen, row.connected, row.version) == (peer_id(ALICE), "b", T0 + 5, True, None)
    world.reopen()
    assert world.rows([peer_id(ALICE)]) == [row]


def test_a_hello_cannot_bring_characters_that_change_what_stands_beside_it(world: World) -> None:
    texts = {"name": "\u202eevil\x1b[31m\r\nred", "device": "a\x00b", "engine": f"{HELLO.engine}\x7f", "software": "\t"}
    world.group_service.registry.register(ALICE, msgspec.structs.replace(HELLO, **texts), None, T0)
    (row,) = world.rows([peer_id(ALICE)])
    assert (row.name, row.device, row.engine) == ("?evil?[31m??red", "a?b", f"{HELLO.engine}?")


def test_rows_count_the_work_of_each_node_and_the_most_work_comes_first(world: World) -> None:
    registry = world.group_service.registry
    for node in (ALICE, BOB):
        registry.register(node, HELLO, None, T0)
    world.accepted(BOB)
    for _ in range(2):
        world.refused(group(world.lease(ALICE), rollouts=[]))
    first, second = world.rows()
    assert (first.id, first.accepted, first.refused, first.rollouts, first.tokens) == (peer_id(BOB), 1, 0, 2, 18)
    assert (first.weight, first.points, first.version) == (140, 140, 0)
    assert (second.accepted, second.refused, second.refusals) == (0, 2, {"incomplete": 2})


def test_the_place_of_a_node_is_that_of_the_page_and_one_without_work_has_none(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = world.group_service.registry
    for node in (ALICE, BOB):
        registry.register(node, HELLO, None, T0)
    world.accepted(BOB)
    assert (registry.place_of(BOB).rank, registry.place_of(ALICE).rank) == (1, None)
    for _ in range(2):
        world.accepted(ALICE)
    assert [row.id for row in world.rows()] == [peer_id(ALICE), peer_id(BOB)]
    assert (registry.place_of(ALICE).rank, registry.place_of(BOB).rank) == (1, 2)
    assert registry.place_of(b"x" * 32) == RankResponse(rank=None, nodes=2)
    monkeypatch.setattr(roster_module, "MOST_RANK", 1)
    assert (registry.place_of(ALICE).rank, registry.place_of(BOB).rank) == (1, None)


def test_contacts_are_written_now_and_then_and_a_new_version_at_once(world: World) -> None:
    registry = world.group_service.registry
    registry.register(ALICE, HELLO, None, T0)
    registry.on_contact(ALICE, T0 + 500)
    assert world.rows()[0].last_seen == T0
    world.now = T0 + 600
    world.publish(4)
    registry.on_contact(ALICE, T0 + 700, 4)
    assert (world.rows()[0].last_seen, world.rows()[0].version) == (T0 + 700, 4)
    registry.save(T0)
    registry.on_contact(ALICE, T0 + 2000, 4)
    registry.save(T0 + 3000)
    assert world.rows()[0].last_seen == T0 + 700
    registry.save(T0 + SAVE_CONTACTS_MS)
    assert world.rows()[0].last_seen == T0 + 2000
    registry.on_contact(ALICE, T0 - 5000, 4)  # the clock was set back
    registry.save(T0 - 5000)
    assert world.rows()[0].last_seen == T0 - 5000


def test_the_contacts_of_many_nodes_are_written_some_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause of the event loop above 100 ms with 10,000 nodes. 439044d writes each contact at once."""
    monkeypatch.setattr("echo2.coordinator.nodes.node_registry.SAVED_AT_ONCE", 3)
    registry, nodes = world.group_service.registry, [bytes([number]) * 32 for number in range(10)]
    for node in nodes:
        registry.register(node, HELLO, None, T0)
        registry.on_contact(node, T0 + 500)
    saved = []
    for second in range(5):
        registry.save(T0 + SAVE_CONTACTS_MS + second)
        saved.append(sum(row.last_seen == T0 + 500 for row in world.rows()))
    assert saved == [3, 6, 9, 10, 10]


def test_a_node_is_in_contact_since_its_hello_unless_it_was_away_for_long(world: World) -> None:
    registry = world.group_service.registry
    assert registry.here_since(ALICE) is None
    registry.register(ALICE, HELLO, None, T0)
    registry.register(ALICE, HELLO, None, T0 + NEW_ARRIVAL_MS)
    assert registry.here_since(ALICE) == T0
    registry.on_contact(ALICE, T0 + 2 * NEW_ARRIVAL_MS)
    registry.register(ALICE, HELLO, None, T0 + 3 * NEW_ARRIVAL_MS + 1)
    assert registry.here_since(ALICE) == T0 + 3 * NEW_ARRIVAL_MS + 1
    world.reopen()
    assert world.group_service.registry.here_since(ALICE) is None


def test_a_node_is_admitted_once_work_of_it_was_accepted(world: World) -> None:
    registry = world.group_service.registry
    world.refused(group(world.lease(ALICE), rollouts=[]))
    world.accepted(BOB)
    assert (registry.is_admitted(ALICE), registry.is_admitted(BOB)) == (False, True)


def record(seed: int, host: str, now: int) -> VerifiedRecord:
    key = Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)
    return decode_own(RecordIssuer(key, RUN).issue([f"/ip4/{host}/tcp/4310/p2p/{peer_id(public_bytes(key))}"], now))


def test_the_coordinator_redials_the_nodes_seen_last_and_none_that_is_banned_or_suspended(world: World) -> None:
    registry, alice, bob = world.group_service.registry, record(1, "1.2.3.4", T0), record(2, "2.3.4.5", T0)
    registry.register(ALICE, HELLO, alice, T0)
    registry.register(BOB, HELLO, bob, T0 + 1)
    assert registry.records(T0 + 1) == [bob, alice]
    world.group_service.accounts.remark(BOB, "node.banned", "poison", T0 + 2)
    assert registry.records(T0 + 2) == [alice]
    world.group_service.accounts.remark(BOB, "node.unbanned", "a mistake", T0 + 3)
    world.group_service.accounts.suspend(ALICE, "not-generated", bytes(32), T0 + 3, T0 + 5)
    assert registry.records(T0 + 4) == [bob]
    assert registry.records(T0 + 5) == [bob, alice]


def test_the_newest_record_of_a_node_counts_until_it_expires_also_after_a_restart(world: World) -> None:
    old, new = record(1, "1.2.3.4", T0), record(1, "2.3.4.5", T0 + 1)
    for given in (old, new, old, None):
        world.group_service.registry.register(ALICE, HELLO, given, T0 + 1)
    world.reopen()
    assert world.group_service.registry.record(ALICE, T0 + RECORD_LIFE_MS) == new
    assert world.group_service.registry.record(ALICE, T0 + RECORD_LIFE_MS + 1) is None
    assert world.group_service.registry.records(T0 + RECORD_LIFE_MS + 1) == []
    assert world.group_service.registry.record(BOB, T0) is None


def crowd(world: World, seeds: range, host: str, now: int) -> list[VerifiedRecord]:
    """Register nodes of one machine, or of many, one after the other. `host`: their address, with a place for a
    number."""
    records = []
    for number in seeds:
        peer_record = record(number, host.format(number), T0)
        world.group_service.registry.register(public_key(peer_record.peer), HELLO, peer_record, now + number)
        records.append(peer_record)
    return records


def test_a_newcomer_is_told_of_nodes_with_accepted_work_beside_many_fresh_keys(world: World) -> None:
    """On 439044d 66 keys that say hello fill the list of 64, and no honest node is in it."""
    honest = crowd(world, range(1, 6), "8.8.{}.1", T0)
    for known in honest:
        world.accepted(public_key(known.peer))
    crowd(world, range(100, 166), "9.9.{}.1", T0 + 1_000)
    told = world.group_service.registry.records(T0 + 2_000)
    assert [known for known in told if known in honest] == honest[::-1], "of them the one seen last first"
    assert 2 * len(honest) >= len(told) > len(honest)


def test_too_many_fresh_keys_are_forgotten_before_their_week_ends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On f814cbd all of them stay for seven days, even thirty million of one connection. Nodes with a group stay, and
    so does a node without one that keeps in contact."""
    monkeypatch.setattr(roster_module, "MOST_WITHOUT_GROUPS", 50)
    registry, database = world.group_service.registry, world.group_service.database
    registry.register(ALICE, HELLO, None, T0)
    registry.register(BOB, HELLO, None, T0)
    world.accepted(BOB)
    for number in range(300):
        now = T0 + 1_000 * number
        registry.register(number.to_bytes(32, "big"), HELLO, None, now)
        registry.on_contact(ALICE, now)
        registry.save(now)
    assert database.value("SELECT count(*) FROM nodes") == 51
    assert all(registry.is_introduced(node) for node in (ALICE, BOB, (299).to_bytes(32, "big")))
    check_sums(database)


def test_a_newcomer_is_told_of_two_nodes_in_a_subnet(world: World) -> None:
    """On 439044d one machine's nodes fill the list."""
    crowd(world, range(1, 40), "8.8.8.{}", T0)
    others = crowd(world, range(50, 53), "8.8.{}.1", T0 - 1_000)
    told = world.group_service.registry.records(T0 + 2_000)
    assert len(told) == 2 + len(others)
    assert set(others) < set(told)


def test_the_rule_for_subnets_is_an_argument(world: World) -> None:
    nodes = crowd(world, range(1, 7), "127.0.{}.1", T0)
    registry = world.group_service.registry
    assert len(registry.records(T0 + 2_000)) == len(nodes), "this machine's own addresses are one owner's"
    assert len(registry.records(T0 + 2_000, subnet_of=lambda ip: "127/8")) == 2


def test_nodes_behind_one_relay_are_not_nodes_of_one_subnet(world: World) -> None:
    for seed in range(11, 16):
        key = Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)
        node = public_bytes(key)
        through = f"/ip4/8.8.8.8/tcp/4310/p2p/{peer_id(ALICE)}/p2p-circuit/p2p/{peer_id(node)}"
        world.group_service.registry.register(
            node, HELLO, decode_own(RecordIssuer(key, RUN).issue([through], T0)), T0 + seed
        )
    assert len(world.group_service.registry.records(T0 + 10)) == 5


def test_no_node_is_told_of_a_banned_node(world: World) -> None:
    (known,) = crowd(world, range(1, 2), "8.8.8.{}", T0)
    node = public_key(known.peer)
    world.accepted(node)
    world.group_service.accounts.remark(node, "node.banned", "poison", T0)
    assert world.group_service.registry.records(T0 + 10) == []


def test_half_of_what_a_newcomer_is_told_is_kept_for_named_nodes_however_many_others_worked_since(world: World) -> None:
    """Without the share 64 keys with one accepted group each, seen later, fill the list."""
    registry = world.group_service.registry
    proven = crowd(world, range(1, 41), "8.8.{}.1", T0)
    others = crowd(world, range(100, 180), "9.9.{}.1", T0 + 1_000)
    registry.keep(public_key(one.peer) for one in proven)
    for one in [*proven, *others]:
        world.group_service.database.do("UPDATE nodes SET weight = 1 WHERE key = ?", (public_key(one.peer),))
    first, second = registry.records(T0 + 2_000), registry.records(T0 + 2_000)
    assert len(first) == len({one.peer for one in first}) == MOST_NAMED_PEERS
    assert first[: MOST_NAMED_PEERS // 2] == proven[: MOST_NAMED_PEERS // 2]
    assert set(proven[MOST_NAMED_PEERS // 2 :]) <= set(second)  # in turn
    registry.keep([])
    assert not set(registry.records(T0 + 2_000)) & set(proven)
