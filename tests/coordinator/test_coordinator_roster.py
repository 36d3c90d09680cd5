"""The nodes that are known, and their rows on the page."""

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.roster import AWAY, SAVE
from p2p.identity import peer_id, public_bytes
from p2p.messages import Hello
from p2p.records import LIFE, Known, Own, trusted
from tests.coordinator.books_world import ALICE, BOB, RUN, T0, World, group

HELLO = Hello(protocols=(1, 1), software="echo2 1", name="a", engine="e", device="d", tasks=[], record=b"")


def test_a_node_keeps_its_row_when_it_says_hello_again(world: World) -> None:
    roster = world.books.roster
    roster.hello(ALICE, HELLO, None, T0)
    roster.hello(ALICE, msgspec.structs.replace(HELLO, name="b"), None, T0 + 5)
    (row,) = roster.rows([peer_id(ALICE)])
    assert (row.id, row.name, row.last_seen, row.connected, row.version) == (peer_id(ALICE), "b", T0 + 5, True, None)
    world.reopen()
    assert world.books.roster.rows([peer_id(ALICE)]) == [row]


def test_rows_count_what_each_node_did_and_the_most_work_comes_first(world: World) -> None:
    roster = world.books.roster
    for node in (ALICE, BOB):
        roster.hello(node, HELLO, None, T0)
    world.accepted(BOB)
    for _ in range(2):
        world.refused(group(world.lease(ALICE), rollouts=[]))
    first, second = roster.rows([])
    assert (first.id, first.accepted, first.refused, first.rollouts, first.tokens) == (peer_id(BOB), 1, 0, 2, 18)
    assert (first.weight, first.points, first.version) == (140, 140, 0)
    assert (second.accepted, second.refused, second.refusals) == (0, 2, {"incomplete": 2})


def test_signs_of_life_are_written_now_and_then_and_a_new_version_at_once(world: World) -> None:
    roster = world.books.roster
    roster.hello(ALICE, HELLO, None, T0)
    roster.saw(ALICE, T0 + 500)
    assert roster.rows([])[0].last_seen == T0
    world.now = T0 + 600
    world.publish(4)
    roster.saw(ALICE, T0 + 700, 4)
    assert (roster.rows([])[0].last_seen, roster.rows([])[0].version) == (T0 + 700, 4)
    roster.save(T0)
    roster.saw(ALICE, T0 + 2000, 4)
    roster.save(T0 + 3000)
    assert roster.rows([])[0].last_seen == T0 + 700
    roster.save(T0 + SAVE)
    assert roster.rows([])[0].last_seen == T0 + 2000
    roster.saw(ALICE, T0 - 5000, 4)  # the clock was set back
    roster.save(T0 - 5000)
    assert roster.rows([])[0].last_seen == T0 - 5000


def test_the_signs_of_life_of_a_crowd_are_written_some_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row A4: no hold above 100 ms with 10,000 nodes. 439044d writes each sign of life when it comes."""
    monkeypatch.setattr("coordinator.roster.SAVED_AT_ONCE", 3)
    roster, nodes = world.books.roster, [bytes([number]) * 32 for number in range(10)]
    for node in nodes:
        roster.hello(node, HELLO, None, T0)
        roster.saw(node, T0 + 500)
    saved = []
    for second in range(5):
        roster.save(T0 + SAVE + second)
        saved.append(sum(row.last_seen == T0 + 500 for row in roster.rows([])))
    assert saved == [3, 6, 9, 10, 10]


def test_a_node_is_here_since_its_hello_unless_it_was_away_for_long(world: World) -> None:
    roster = world.books.roster
    assert roster.here_since(ALICE) is None
    roster.hello(ALICE, HELLO, None, T0)
    roster.hello(ALICE, HELLO, None, T0 + AWAY)
    assert roster.here_since(ALICE) == T0
    roster.saw(ALICE, T0 + 2 * AWAY)
    roster.hello(ALICE, HELLO, None, T0 + 3 * AWAY + 1)
    assert roster.here_since(ALICE) == T0 + 3 * AWAY + 1
    world.reopen()
    assert world.books.roster.here_since(ALICE) is None


def test_a_node_is_admitted_once_work_of_it_was_accepted(world: World) -> None:
    roster = world.books.roster
    world.refused(group(world.lease(ALICE), rollouts=[]))
    world.accepted(BOB)
    assert (roster.admitted(ALICE), roster.admitted(BOB)) == (False, True)


def record(seed: int, host: str, now: int) -> Known:
    key = Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)
    return trusted(Own(key, RUN).sealed([f"/ip4/{host}/tcp/4310/p2p/{peer_id(public_bytes(key))}"], now))


def test_the_coordinator_redials_those_it_saw_last_and_nobody_banned_or_suspended(world: World) -> None:
    roster, alice, bob = world.books.roster, record(1, "1.2.3.4", T0), record(2, "2.3.4.5", T0)
    roster.hello(ALICE, HELLO, alice, T0)
    roster.hello(BOB, HELLO, bob, T0 + 1)
    assert roster.records(T0 + 1) == [bob, alice]
    world.books.accounts.remark(BOB, "node.banned", "poison", T0 + 2)
    assert roster.records(T0 + 2) == [alice]
    world.books.accounts.remark(BOB, "node.unbanned", "a mistake", T0 + 3)
    world.books.accounts.suspend(ALICE, "not-generated", bytes(32), T0 + 3, T0 + 5)
    assert roster.records(T0 + 4) == [bob]
    assert roster.records(T0 + 5) == [bob, alice]


def test_the_newest_record_of_a_node_counts_until_it_is_over_also_after_a_restart(world: World) -> None:
    old, new = record(1, "1.2.3.4", T0), record(1, "2.3.4.5", T0 + 1)
    for given in (old, new, old, None):
        world.books.roster.hello(ALICE, HELLO, given, T0 + 1)
    world.reopen()
    assert world.books.roster.record(ALICE, T0 + LIFE) == new
    assert world.books.roster.record(ALICE, T0 + LIFE + 1) is None
    assert world.books.roster.records(T0 + LIFE + 1) == []
    assert world.books.roster.record(BOB, T0) is None
