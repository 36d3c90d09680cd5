"""The broadcast plan in a whole run: nodes request it, connect to their parents, and continue without it."""

from pathlib import Path

import pytest

from echo2.node.links.plan_client import ASK_EVERY
from echo2.p2p.discovery.peer_records import VerifiedRecord
from echo2.p2p.identity import public_key
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import Node, until
from tests.support.swarm import Swarm, finished, make_swarm, wall, working

SLOW = 0.16
"""Mbit/s of a coordinator's uplink, so slow that it should send each chunk once."""
NAMES = ("alice", "bob", "carol", "dave")


def parents(node: Node) -> set[str]:
    return set(node.daemon.connectivity.plan_client.parents)


def settled(swarm: Swarm, nodes: list[Node]) -> bool:
    """Tell whether exactly these nodes follow the current plan, and are connected with their parents."""
    plan = swarm.coordinator.feeding.plan
    return plan.parents.keys() == {node.peer_id for node in nodes} and all(
        tuple(node.daemon.connectivity.plan_client.parents) == plan.parents[node.peer_id]
        and parents(node) <= set(swarm.network.transports[node.peer_id].peers())
        for node in nodes
    )


async def received(node: Node) -> dict[str, int]:
    return (await node.daemon.network.exchange.traffic()).received_by_peer


@pytest.mark.slow
@on_fake_clock
async def test_nodes_follow_the_coordinators_plan_and_take_new_versions_from_their_parents(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path, network={"uplink": SLOW}, steps=40)
    async with swarm.coordinating() as coordinator:
        nodes = [swarm.node(name) for name in NAMES]
        async with working(*nodes):
            await until(lambda: settled(swarm, nodes))
            fed = [node for node in nodes if swarm.run.peer_id not in parents(node)]
            assert fed
            before = {node.peer_id: await received(node) for node in fed}
            reached = coordinator.publisher.latest
            assert reached is not None
            await until(lambda: (coordinator.publisher.latest or reached).version >= reached.version + 3, 600)
            for node in fed:
                old, new = before[node.peer_id], await received(node)
                assert sum(new.get(peer, 0) - old.get(peer, 0) for peer in parents(node)) > 0


@pytest.mark.slow
@on_fake_clock
async def test_a_joining_node_enters_the_plan_and_a_leaving_node_is_no_parent_any_more(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path, steps=400)
    async with swarm.coordinating():
        *staying, leaving = nodes = [swarm.node(name) for name in NAMES]
        async with working(*staying):
            async with working(leaving):
                await until(lambda: settled(swarm, nodes))
            await until(lambda: settled(swarm, staying), 3 * ASK_EVERY)
            newcomer = swarm.node("erin")
            async with working(newcomer):
                await until(lambda: settled(swarm, [*staying, newcomer]), 3 * ASK_EVERY)


@pytest.mark.slow
@on_fake_clock
async def test_nodes_follow_the_plan_of_a_coordinator_that_was_started_again(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path, steps=400)
    nodes = [swarm.node(name) for name in NAMES]
    async with working(*nodes):
        for _ in range(2):
            async with swarm.coordinating():
                await until(lambda: settled(swarm, nodes), 300)


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.slow_but("True")
@on_fake_clock
async def test_a_run_finishes_with_and_without_a_plan(tmp_path: Path, enabled: bool) -> None:
    swarm = make_swarm(tmp_path, network={"plan": enabled}, steps=4)
    async with swarm.coordinating() as coordinator:
        nodes = [swarm.node(name) for name in ("alice", "bob")]
        async with working(*nodes):
            await until(lambda: finished(coordinator), 600)
            assert all(bool(node.daemon.connectivity.plan_client.parents) == enabled for node in nodes)
            assert all(node.daemon.rollouts.done > 0 for node in nodes)


@pytest.mark.slow
@on_fake_clock
async def test_a_node_that_moves_is_found_again_by_its_new_record(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path, steps=400)
    async with swarm.coordinating() as coordinator:
        nodes = [swarm.node(name) for name in NAMES]
        moving, *staying = nodes

        def record() -> VerifiedRecord:
            known = coordinator.group_service.registry.record(public_key(moving.peer_id), int(wall() * 1000))
            assert known is not None
            return known

        async with working(*nodes):
            await until(lambda: settled(swarm, nodes))
            before = record()
            swarm.network.move(moving.peer_id)
            await until(lambda: record().issued > before.issued)
            assert record().addresses == (swarm.network.addresses.address(moving.peer_id),)
            await until(lambda: settled(swarm, nodes), 600)
            fed = [node for node in staying if moving.peer_id in parents(node)]
            heard = [node.daemon.connectivity.dialer.records.of(moving.peer_id) for node in fed]
            assert heard == [record()] * len(fed)
            await until(lambda: len(swarm.network.transports[moving.peer_id].peers()) > 1)
