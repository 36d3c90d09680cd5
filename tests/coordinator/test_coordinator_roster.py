"""The nodes that are known, and their rows on the page."""

import msgspec

from coordinator.roster import AWAY
from p2p.identity import peer_id
from p2p.messages import Hello
from tests.coordinator.books_world import ALICE, BOB, T0, World, group

HELLO = Hello(
    protocols=(1, 1), software="echo2 1", name="a", engine="e", device="d", tasks=[], addresses=["/ip4/1.2.3.4/tcp/5"]
)


def test_a_node_keeps_its_row_when_it_says_hello_again(world: World) -> None:
    roster = world.books.roster
    roster.hello(ALICE, HELLO, T0)
    roster.hello(ALICE, msgspec.structs.replace(HELLO, name="b"), T0 + 5)
    (row,) = roster.rows([peer_id(ALICE)])
    assert (row.id, row.name, row.last_seen, row.connected, row.version) == (peer_id(ALICE), "b", T0 + 5, True, None)
    world.reopen()
    assert world.books.roster.rows([peer_id(ALICE)]) == [row]


def test_rows_count_what_each_node_did_and_the_most_work_comes_first(world: World) -> None:
    roster = world.books.roster
    for node in (ALICE, BOB):
        roster.hello(node, HELLO, T0)
    world.accepted(BOB)
    for _ in range(2):
        world.refused(group(world.lease(ALICE), rollouts=[]))
    first, second = roster.rows([])
    assert (first.id, first.accepted, first.refused, first.rollouts, first.tokens) == (peer_id(BOB), 1, 0, 2, 18)
    assert (first.weight, first.points, first.version) == (140, 140, 0)
    assert (second.accepted, second.refused, second.refusals) == (0, 2, {"incomplete": 2})


def test_signs_of_life_are_written_once_a_second_and_a_new_version_at_once(world: World) -> None:
    roster = world.books.roster
    roster.hello(ALICE, HELLO, T0)
    roster.saw(ALICE, T0 + 500)
    assert roster.rows([])[0].last_seen == T0
    world.now = T0 + 600
    world.publish(4)
    roster.saw(ALICE, T0 + 700, 4)
    assert (roster.rows([])[0].last_seen, roster.rows([])[0].version) == (T0 + 700, 4)
    roster.saw(ALICE, T0 + 2000, 4)
    assert roster.rows([])[0].last_seen == T0 + 2000


def test_a_node_is_here_since_its_hello_unless_it_was_away_for_long(world: World) -> None:
    roster = world.books.roster
    assert roster.here_since(ALICE) is None
    roster.hello(ALICE, HELLO, T0)
    roster.hello(ALICE, HELLO, T0 + AWAY)
    assert roster.here_since(ALICE) == T0
    roster.saw(ALICE, T0 + 2 * AWAY)
    roster.hello(ALICE, HELLO, T0 + 3 * AWAY + 1)
    assert roster.here_since(ALICE) == T0 + 3 * AWAY + 1
    world.reopen()
    assert world.books.roster.here_since(ALICE) is None


def test_a_node_is_admitted_once_work_of_it_was_accepted(world: World) -> None:
    roster = world.books.roster
    world.refused(group(world.lease(ALICE), rollouts=[]))
    world.accepted(BOB)
    assert (roster.admitted(ALICE), roster.admitted(BOB)) == (False, True)


def test_the_coordinator_redials_those_it_saw_last_and_no_banned_one(world: World) -> None:
    roster = world.books.roster
    roster.hello(ALICE, HELLO, T0)
    roster.hello(BOB, msgspec.structs.replace(HELLO, addresses=["b", "c"]), T0 + 1)
    assert roster.addresses() == ["b", "c", "/ip4/1.2.3.4/tcp/5"]
    roster.ban(BOB, "poison", T0 + 2)
    assert roster.addresses() == ["/ip4/1.2.3.4/tcp/5"]
    assert roster.banned(BOB) == "poison"
    assert roster.banned(ALICE) is None
