"""A node that vanishes in mid-lease: another goes on behind its tokens, both are paid, the learner gets one group.

Reports come every 6 seconds here, not every minute."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.daemon import Coordinator
from echo2.coordinator.database.database import Database
from echo2.coordinator.verification.verdict_replay import replay_verdicts
from echo2.p2p.wire_types import decode
from echo2.protocol.group_weights import rollout_points
from echo2.protocol.leases import Lease, Submission
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import Node, until
from tests.support.ledger_sums import check_sums
from tests.support.swarm import Swarm, accepted, make_swarm, step, working

LEASES = {"minimum_seconds": 60.0, "maximum_seconds": 90.0, "move": True, "report_seconds": 6.0}
LONG = 20.0
"""Seconds of a long group: three reports, and most of its tokens are told."""


def made(tmp_path: Path, **leases: object) -> Swarm:
    return make_swarm(tmp_path, group_size=2, batch_groups=12, limit=48, staleness=4, leases=LEASES | leases)


def begun_leases(coordinator: Coordinator, where: str = "twin = 'finish'") -> list[Lease]:
    rows = coordinator.group_service.database.all(f"SELECT document FROM leases WHERE {where} ORDER BY sent")
    return [decode(document, Lease) for (document,) in rows]


async def known(coordinator: Coordinator, *nodes: Node) -> None:
    """Let nodes become known by quick groups; then their groups are long."""
    await until(lambda: min(map(accepted, nodes)) >= 5, 300)
    for node in nodes:
        node.engine.seconds = LONG


def in_mid_lease(coordinator: Coordinator, node: Node) -> Callable[[], bool]:
    """Return whether enough of a lease of this node is reported."""
    query = (
        "SELECT b.lease FROM begun_groups b JOIN leases l ON l.id = b.lease WHERE l.node = ? AND b.state = 'reported'"
    )

    def reported() -> bool:
        begun = coordinator.group_service.leases.begun
        leases = [row[0] for row in coordinator.group_service.database.all(query, (node.daemon.context.node,))]
        return any(at is not None and at.tokens >= 24 for at in map(begun.reported, leases))

    return reported


@on_fake_clock
@pytest.mark.slow
async def test_another_node_finishes_what_a_lost_one_has_begun(tmp_path: Path) -> None:
    swarm = made(tmp_path)
    async with swarm.coordinating() as coordinator:
        database = coordinator.group_service.database
        alice, bob = swarm.node("alice"), swarm.node("bob")
        async with working(bob):
            async with working(alice):
                await known(coordinator, alice, bob)
                await until(in_mid_lease(coordinator, alice), 200)
            await until(lambda: coordinator.view_builder.build().finished_tokens, 300)
        (lease,) = begun_leases(coordinator)
        (lost,) = begun_leases(coordinator, "id IN (SELECT lease FROM begun_groups WHERE state = 'over')")
        assert (lost.node, lease.node) == (alice.daemon.context.node, bob.daemon.context.node)
        assert lease.seeds == lost.seeds
        assert lease.root == lost.root
        assert sum(map(len, lease.begun)) >= 2 * len(lease.prompt)
        payload = database.value("SELECT payload FROM submissions WHERE lease = ?", (lease.id,))
        whole = decode(payload, Submission)
        weight = database.value("SELECT weight FROM verdicts WHERE lease = ?", (lease.id,))
        entries = {entry.key: msgspec.msgpack.decode(entry.facts) for entry in Ledger(database).entries()}
        paid = entries[f"begun:{lost.id.hex()}"]["weight"]
        assert paid + weight == sum(rollout_points(len(lease.prompt) + len(one.tokens)) for one in whole.rollouts)
        assert paid > 0
        in_buffer = database.all("SELECT lease FROM buffer WHERE position = (SELECT position FROM leases WHERE id = ?)",
                                 (lease.id,))  # fmt: skip
        assert in_buffer == [(lease.id,)]
        state = coordinator.view_builder.build()
        assert state.refused == {}
        assert (state.moved, state.moved_tokens) == (1, sum(map(len, lease.begun)))
        check_sums(database)
        Ledger(database).verify()
    with closing(Database.read(swarm.run.folder.database)) as left:
        assert replay_verdicts(left, lambda hash: None).faults == []


@on_fake_clock
@pytest.mark.slow
async def test_a_node_that_starts_again_gives_its_leases_back_and_they_go_on_at_once(tmp_path: Path) -> None:
    swarm = made(tmp_path)
    async with swarm.coordinating() as coordinator:
        alice, bob = swarm.node("alice"), swarm.node("bob")
        async with working(bob):
            async with working(alice):
                await known(coordinator, alice, bob)
                await until(in_mid_lease(coordinator, alice), 200)
            again = swarm.node("alice", key=alice.daemon.context.key)
            again.engine.seconds = LONG
            async with working(again):
                await until(lambda: coordinator.view_builder.build().moved, 60)
                await until(lambda: coordinator.view_builder.build().finished_tokens, 200)
        assert coordinator.view_builder.build().refused == {}
        check_sums(coordinator.group_service.database)


@pytest.mark.slow
@on_fake_clock
async def test_a_coordinator_that_is_killed_meanwhile_goes_on_with_it(tmp_path: Path) -> None:
    swarm = made(tmp_path)
    async with swarm.coordinating() as coordinator:
        alice, bob = swarm.node("alice"), swarm.node("bob")
        async with working(bob), working(alice):
            await known(coordinator, alice, bob)
            await until(in_mid_lease(coordinator, alice), 200)
    again = swarm.node("bob", key=bob.daemon.context.key)
    again.engine.seconds = LONG
    async with swarm.coordinating() as coordinator, working(again):
        await until(lambda: coordinator.view_builder.build().moved, 300)
        await until(lambda: coordinator.view_builder.build().finished_tokens, 300)
        check_sums(coordinator.group_service.database)


@pytest.mark.slow
@on_fake_clock
@pytest.mark.parametrize("move", [True, False])
async def test_nothing_is_reported_of_short_groups_nor_without_the_setting(tmp_path: Path, move: bool) -> None:
    swarm = made(tmp_path, move=move)
    async with swarm.coordinating() as coordinator:
        alice = swarm.node("alice")
        async with working(alice):
            await until(lambda: accepted(alice) >= 5, 300)
            alice.engine.seconds = 3.0 if move else LONG
            before = step(coordinator)
            await until(lambda: step(coordinator) >= before + 2, 600)
        assert "so_far" not in alice.engine.log
        assert coordinator.group_service.database.all("SELECT * FROM begun_groups") == []
