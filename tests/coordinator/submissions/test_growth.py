"""A long history costs no more: each action reads as much of run.sqlite as on the first day.

The tests count the instructions of SQLite's virtual machine (tests/support/sqlite_cost.py).
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from echo2.coordinator.accounts.ledger_tree import LedgerTree
from echo2.coordinator.command_line.over_time_report import stored_rows
from echo2.coordinator.metrics import run_metrics
from echo2.coordinator.verdicts.token_storage import CHALLENGE_WINDOW_MS
from echo2.coordinator.web import node_rows
from echo2.p2p.limits.origin import Origin
from echo2.p2p.wire_types import encode
from echo2.protocol.leases import VerdictsRequest
from tests.support import sqlite_cost
from tests.support.group_world import ALICE, HELLO, T0, World, group, name

FEW, MANY = 500, 10_000
PER_VERSION, NODES = 5, 20


def write_history(world: World, groups: int) -> None:
    """Write groups that were decided, drawn and confirmed long ago; each tenth receipt was not confirmed."""
    database = world.group_service.database
    document = encode(world.lease(name("node", 0, 32)))
    tree = LedgerTree(database)
    with database.transaction():
        for number in range(groups):
            lease, node, version = name("lease", number), name("node", number % NODES, 32), number // PER_VERSION
            sent = T0 + number * 100
            open_lease = (
                lease,
                node,
                name("nonce", number),
                number + 1,
                1,
                version,
                sent,
                sent + 20_000,
                "open",
                document,
            )
            database.do(
                "INSERT INTO leases VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, x'73', 0, '', '', '', 1, NULL, NULL, 0)",
                open_lease,
            )
            if number % 20 == 0:
                database.do("UPDATE leases SET state = 'expired' WHERE id = ?", (lease,))
                continue
            code = "ok" if number % 7 else "logprobs"
            sums = ("accepted" if number % 7 else "refused", code, code == "ok", 70, 2, 18)
            database.do(
                "INSERT INTO submissions VALUES (?, ?, ?, ?, x'90', x'', 0, NULL, NULL)",
                (lease, lease, sent + 9, b"tokens"),
            )
            database.do("UPDATE leases SET state = 'received' WHERE id = ?", (lease,))
            seq = number - number // 20
            entry = (seq, sent, "lease.accepted", f"lease:{lease.hex()}", b"\x90", b"", lease)
            database.do("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)", entry)
            tree.append(seq - 1, name("entry", seq))
            verdict = (lease, node, *sums, seq, sent + 10, b"")
            database.do("INSERT INTO verdicts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)", verdict)
            database.do("UPDATE leases SET state = 'decided' WHERE id = ?", (lease,))
            if number % 10:
                database.do("UPDATE verdicts SET confirmed = 1 WHERE lease = ?", (lease,))
            if code == "ok":
                database.do("INSERT INTO buffer VALUES (?, 1, ?, ?, 1, NULL, NULL, 0)", (lease, version, sent))
    for number in range(NODES):
        world.group_service.registry.register(name("node", number, 32), HELLO, None, T0 + groups * 100)
    world.now = T0 + groups * 100
    world.learner_at(groups // PER_VERSION)
    while forgotten_tokens(world):
        pass


def instructions(world: World, action: Callable[[World], object]) -> int:
    """Count the instructions that an action takes the second time, in tens."""
    action(world)
    return sqlite_cost.instructions(world.group_service.database, lambda: action(world))


def step_of(world: World) -> int:
    return world.group_service.progress.step


def ask(world: World) -> object:
    return world.lease(ALICE, step_of(world))


def refused_ask(world: World) -> object:
    return world.refusal(max(0, step_of(world) - 3), ALICE)


def judged_group(world: World) -> object:
    lease = world.accepted(ALICE, step_of(world))
    return world.group_service.submissions.verdicts(ALICE, VerdictsRequest(leases=[lease.id], confirmed=[lease.id]))


def draw(world: World) -> object:
    at = world.group_service.progress
    return world.group_service.buffer.next_completion(at.step, at.era, 1)


def late_group(world: World) -> object:
    lease = world.lease(ALICE, step_of(world))
    world.now += 3_600_000
    world.group_service.tick(world.now)
    return world.refused(group(lease))


def tick(world: World) -> object:
    return world.group_service.tick(world.now), world.group_service.oldest_needed()


def forgotten_tokens(world: World) -> object:
    return world.group_service.forget([], step_of(world), 1, world.now + CHALLENGE_WINDOW_MS)


def room_for_groups(world: World) -> object:
    service = world.group_service
    return service.tokens.make_room(-1, step_of(world), 1, service.terms.staleness)


def hello(world: World) -> object:
    world.group_service.registry.register(ALICE, HELLO, None, world.now)
    return world.group_service.registry.is_admitted(ALICE), world.group_service.registry.records(world.now)


def picture(world: World) -> object:
    database, rates = world.group_service.database, dict[bytes, float]()
    for number in range(NODES):  # else no rate is measured once an earlier action has let an hour pass
        world.group_service.registry.register(name("node", number, 32), HELLO, None, world.now)
    supply = run_metrics.supply(database, world.now, rates)
    return (
        supply,
        rates,
        run_metrics.counts(world.group_service.database, world.now),
        node_rows.page(database, None, 100, [], {}),
        node_rows.count_known(database, []),
        run_metrics.work(database),
        run_metrics.quick_turnaround(database),
        world.group_service.count_buffered(),
    )


def evidence_over_time(world: World) -> object:
    return stored_rows(world.group_service.database)


ACTIONS = [
    ask, refused_ask, draw, judged_group, late_group, tick, forgotten_tokens, room_for_groups, hello,
    picture, evidence_over_time,
]  # fmt: skip


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, World]]:
    two_worlds = [World(tmp_path_factory.mktemp("world"), batch_groups=100) for _ in range(2)]
    for world, groups in zip(two_worlds, (FEW, MANY), strict=True):
        write_history(world, groups)
    yield two_worlds[0], two_worlds[1]
    for world in two_worlds:
        world.close()


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.__name__)
@pytest.mark.slow_for("ask", "refused_ask")
def test_a_long_history_costs_no_more(worlds: tuple[World, World], action: Callable[[World], object]) -> None:
    few, many = (instructions(world, action) for world in worlds)
    assert many <= 1.5 * few + 20, f"{10 * few} instructions after {FEW} groups, {10 * many} after {MANY}"


@pytest.mark.slow
def test_a_lease_request_costs_no_more_beside_many_open_leases(tmp_path: Path) -> None:
    world = World(tmp_path, batch_groups=10_000, per_node=10_000)
    alone = instructions(world, ask)
    for number in range(2_000):
        world.lease(name("node", number, 32))
    beside = instructions(world, ask)
    assert beside <= 1.5 * alone + 20, f"{10 * alone} instructions alone, {10 * beside} beside 2,000 open leases"


@pytest.mark.slow
def test_a_lease_request_costs_no_more_beside_a_full_buffer(tmp_path: Path) -> None:
    """On 05512ca2 each request counts the groups of the buffer."""
    world = World(tmp_path, batch_groups=10_000, per_node=10_000)
    world.accepted(ALICE)
    few = instructions(world, ask)
    database = world.group_service.database
    document = encode(world.lease(name("node", 0, 32)))
    with database.transaction():
        for number in range(2_000):
            lease = name("full", number)
            database.do(
                "INSERT INTO leases (id, node, nonce, position, era, version, sent, expires, state, document, sealed)"
                " VALUES (?, x'01', ?, ?, 1, 0, 0, 0, 'decided', ?, x'')",
                (lease, lease, 100_000 + number, document),
            )
            database.do("INSERT INTO buffer VALUES (?, 1, 0, ?, 1, NULL, NULL, 0)", (lease, T0))
    assert world.group_service.count_buffered() > 2_000
    many = instructions(world, ask)
    assert many <= 1.5 * few + 20, f"{10 * few} instructions beside an empty buffer, {10 * many} beside a full one"


@pytest.mark.parametrize("action", [hello, ask, tick, picture], ids=lambda action: action.__name__)
@pytest.mark.slow_but("tick")
def test_many_keys_cost_no_more(tmp_path: Path, action: Callable[[World], object]) -> None:
    """On 439044d each hello sorts all nodes that ever said hello, and a view of the run reads them all."""
    counted = []
    for folder, keys in (("few", 300), ("many", 3_000)):
        (tmp_path / folder).mkdir()
        world = World(tmp_path / folder, batch_groups=100)
        with world.group_service.database.transaction():
            for number in range(keys):
                world.group_service.registry.register(name("key", number, 32), HELLO, None, T0 + number)
        counted.append(instructions(world, action))
    few, many = counted
    assert many <= 1.5 * few + 20, f"{10 * few} instructions with 300 keys, {10 * many} with 3,000"


@pytest.mark.slow
def test_a_lease_request_costs_no_more_beside_many_waiting_nodes_and_many_returned_positions(tmp_path: Path) -> None:
    world = World(tmp_path, batch_groups=100)
    world.accepted(ALICE)

    def refused(world: World) -> object:
        origin = Origin("one more", "198.51.100.0/24")
        return world.group_service.lease(name("late", 0, 32), world.ask(), world.now, origin)

    for number in range(300):
        world.group_service.lease(
            name("first", number, 32), world.ask(), world.now, Origin(f"first {number}", f"{number}")
        )
    alone = instructions(world, refused)
    for number in range(2_000):
        world.group_service.lease(
            name("node", number, 32), world.ask(), world.now, Origin(f"crowd {number}", f"{number % 50}")
        )
    beside = instructions(world, refused)
    world.now += 3_600_000
    while world.group_service.tick(world.now):
        pass
    world.group_service.database.do("DELETE FROM budgets")
    few = instructions(world, ask)
    world.group_service.database.do(
        "INSERT INTO again SELECT position + 10000 * k, 1, 'expired', 0 FROM again, (WITH t(k) AS"
        " (SELECT 1 UNION ALL SELECT k + 1 FROM t WHERE k < 30) SELECT k FROM t)"
    )
    many = instructions(world, ask)
    assert beside <= 1.5 * alone + 20, f"{10 * alone} instructions alone, {10 * beside} beside 2,000 that wait"
    assert many <= 1.5 * few + 20, f"{10 * few} instructions, {10 * many} with 9,000 positions that came back"
