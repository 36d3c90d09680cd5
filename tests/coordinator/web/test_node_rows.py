"""Rows of nodes, read from run.sqlite in pages."""

import pytest

from echo2.coordinator.web import node_rows
from echo2.coordinator.web.node_rows import Cursor
from echo2.p2p.errors import Malformed
from echo2.protocol.requests import Hello
from tests.support.group_world import ALICE, T0, World

HELLO = Hello(protocols=(1, 1), software="echo2 1", name="a", engine="e", device="d", tasks=[], record=b"")


def test_pages_follow_the_work_and_leave_no_node_out(world: World) -> None:
    keys = [bytes([number]) * 32 for number in range(100, 107)]
    for node in (*keys, ALICE):
        world.group_service.registry.register(node, HELLO, None, T0)
    world.accepted(ALICE)
    world.accepted(keys[3])
    world.accepted(keys[3])
    nodes, after, ranks = [], None, []
    while True:
        page = node_rows.page(world.group_service.database, after, 3, [], {})
        ranks.append(page.first)
        nodes += page.rows
        if page.after is None:
            break
        after = Cursor.read(str(page.after))
    assert [row.accepted for row in nodes[:3]] == [2, 1, 0]
    assert len({row.id for row in nodes}) == len(nodes) == 8
    assert ranks == [1, 4, 7]


def test_a_cursor_survives_a_round_trip() -> None:
    cursor = Cursor(100, 5, b"\x01" * 32)
    assert Cursor.read(str(cursor)) == cursor
    with pytest.raises(Malformed, match="malformed cursor"):
        Cursor.read("-1--")


def test_a_row_has_the_nodes_rank_and_suspension(world: World) -> None:
    world.group_service.registry.register(ALICE, HELLO, None, T0)
    world.group_service.accounts.remark(ALICE, "node.vouched", "", T0)
    world.group_service.accounts.suspend(ALICE, "drift", bytes(32), T0, T0 + 5)
    (row,) = node_rows.page(world.group_service.database, None, 3, [], {}).rows
    assert (row.rank, row.suspended_until, row.suspended_for) == ("known", T0 + 5, "drift")
