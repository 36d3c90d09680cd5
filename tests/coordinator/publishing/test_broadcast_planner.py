"""The planner covers the connected nodes, estimates their uplinks, and limits the effect of false reports."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import pytest

from benchmarks.memory_network.transport import MemoryNetwork
from echo2.coordinator.publishing.broadcast_planner import (
    ESTIMATE_FADE,
    EXCLUDED_PARENT_SECONDS,
    NODE_POLL_SECONDS,
    PLAN_SETTLE_SECONDS,
    BroadcastPlanner,
    PlanInputs,
)
from echo2.p2p.discovery.peer_records import VerifiedRecord
from echo2.p2p.errors import Unreachable
from echo2.p2p.network import Network
from echo2.p2p.peer.peer import Peer
from echo2.p2p.plan.trees import PayloadSize
from echo2.p2p.swarm.exchange import ChunkExchange
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.broadcast_messages import PlanRequest, PlanResponse
from echo2.protocol.methods import FOLLOW, PLAN
from tests.support.clock import on_fake_clock
from tests.support.peers import running

MB = 1_000_000


def direct(peer: str) -> VerifiedRecord:
    """Return a record of a node that can be dialled."""
    return VerifiedRecord(peer, (f"/ip4/192.0.2.1/tcp/4310/p2p/{peer}",), 0, peer.encode())


@asynccontextmanager
async def world(
    number: int,
    *,
    uplinks: Callable[[], dict[str, float]] = dict,
    record: Callable[[str], VerifiedRecord | None] = direct,
    uplink: float | None = 10.0 * MB,
    enabled: bool = True,
) -> AsyncIterator[tuple[MemoryNetwork, BroadcastPlanner, list[Peer]]]:
    """Run a coordinator "c" with its planner, and so many connected nodes."""
    network = MemoryNetwork(1)
    coordinator = Peer(network.transport("c"), seed=0)
    inputs = PlanInputs(uplinks, record, lambda: PayloadSize(40 * MB, 156_250))
    planner = BroadcastPlanner(
        Network.of(coordinator), inputs, uplink=uplink, enabled=enabled, clock=anyio.current_time, seed=1
    )
    nodes = [Peer(network.transport(f"n{index}"), seed=index) for index in range(number)]
    async with running(coordinator, *nodes, connect=False):
        for node in nodes:
            await node.dial(await coordinator.addresses())
        yield network, planner, nodes


async def ask(node: Peer, **fields) -> PlanResponse:
    return await PLAN.ask(node, "c", PlanRequest(**fields), timeout=20)


async def ask_all(nodes: list[Peer]) -> dict[str, PlanResponse]:
    answers: dict[str, PlanResponse] = {}

    async def one(node: Peer) -> None:
        answers[node.peer_id] = await ask(node)

    async with anyio.create_task_group() as tasks:
        for node in nodes:
            tasks.start_soon(one, node)
    return answers


@on_fake_clock
async def test_nodes_that_request_together_are_planned_together_and_get_the_records_of_their_parents():
    async with world(8) as (_, _, nodes):
        await ask_all(nodes)
        await anyio.sleep(PLAN_SETTLE_SECONDS)
        answers = await ask_all(nodes)
        for peer, answer in answers.items():
            assert answer.parents
            assert peer not in answer.parents
            assert {record.decode() for record in answer.records} == set(answer.parents) - {"c"}
        assert any("c" in answer.parents for answer in answers.values())


@on_fake_clock
async def test_the_coordinators_children_have_priority_at_its_uplink(monkeypatch):
    prioritised: list[set[str]] = []

    async def follow(exchange: ChunkExchange, parents, children=()) -> None:
        assert not parents, "the nodes here follow no plan: this is the coordinator's call"
        prioritised.append(set(children))

    monkeypatch.setattr(ChunkExchange, "follow", follow)
    async with world(8) as (_, _, nodes):
        await ask_all(nodes)
        await anyio.sleep(PLAN_SETTLE_SECONDS)
        answers = await ask_all(nodes)
        fed = {peer for peer, answer in answers.items() if "c" in answer.parents}
        assert fed
        assert prioritised[-1] == fed


@on_fake_clock
async def test_a_node_that_left_is_no_parent():
    async with world(6) as (network, _, nodes):
        await ask_all(nodes)
        gone = next(up for answer in (await ask_all(nodes)).values() for up in answer.parents if up != "c")
        network.kill(gone)
        await anyio.sleep(2 * PLAN_SETTLE_SECONDS)
        rest = [node for node in nodes if node.peer_id != gone]
        await ask(rest[0], failed=[gone])
        answers = await ask_all(rest)
        assert all(gone not in answer.parents for answer in answers.values())


@on_fake_clock
async def test_when_a_node_leaves_exactly_the_nodes_with_new_parents_are_told_at_once():
    async with world(8) as (network, planner, nodes):
        await ask_all(nodes)
        await anyio.sleep(PLAN_SETTLE_SECONDS)
        before = {peer: answer.parents for peer, answer in (await ask_all(nodes)).items()}
        told: dict[str, list[str]] = {}

        def hears(node: Peer) -> None:
            async def follow(peer: str, data: bytes) -> bytes:
                assert peer == "c"
                assert node.peer_id not in told
                told[node.peer_id] = decode(data, PlanResponse).parents
                return b""

            node.serve(FOLLOW.name, follow, limit=FOLLOW.limit)

        for node in nodes:
            hears(node)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(planner.run())
            await anyio.sleep(2 * PLAN_SETTLE_SECONDS)
            assert not told
            gone = next(up for parents in before.values() for up in parents if up != "c")
            network.kill(gone)
            await anyio.sleep(2 * NODE_POLL_SECONDS)
            running.cancel()
        after = planner.plan.parents
        moved = {peer for peer, parents in after.items() if list(parents) != before[peer]}
        assert {peer for peer, parents in before.items() if gone in parents} <= moved
        assert told == {peer: list(after[peer]) for peer in moved}


@on_fake_clock
async def test_a_node_that_misses_its_new_parents_delays_no_other_and_learns_them_on_request():
    async with world(6) as (network, planner, nodes):
        await ask_all(nodes)
        await anyio.sleep(PLAN_SETTLE_SECONDS)
        before = await ask_all(nodes)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(planner.run())
            gone = next(up for answer in before.values() for up in answer.parents if up != "c")
            network.kill(gone)
            await anyio.sleep(2 * PLAN_SETTLE_SECONDS)
            for node in nodes:
                if node.peer_id != gone:
                    assert gone not in (await ask(node)).parents
            running.cancel()


@on_fake_clock
async def test_a_parent_that_one_node_cannot_reach_is_replaced_for_that_node_alone_and_for_a_while():
    async with world(6) as (_, planner, nodes):
        await ask_all(nodes)
        answers = await ask_all(nodes)
        # A parent of several nodes: the others keep it.
        fed = Counter(up for answer in answers.values() for up in set(answer.parents) - {"c"})
        parent = max(fed, key=lambda up: (fed[up], up))
        assert fed[parent] > 1
        child = next(node for node in nodes if parent in answers[node.peer_id].parents)
        assert parent not in (await ask(child, failed=[parent, "n99"])).parents
        assert any(parent in ups for ups in planner.plan.parents.values())
        await anyio.sleep(EXCLUDED_PARENT_SECONDS + 1)
        await ask(child)
        assert not planner._nodes[child.peer_id].excluded


NOT_DIALABLE = {
    "has signed no record": None,
    "names no address": VerifiedRecord("n0", (), 0, b"n0"),
    "is behind a relay": VerifiedRecord("n0", ("/ip4/192.0.2.1/tcp/4310/p2p/r/p2p-circuit/p2p/n0",), 0, b"n0"),
}


@pytest.mark.parametrize("record", NOT_DIALABLE.values(), ids=NOT_DIALABLE.keys())
@on_fake_clock
async def test_a_node_that_cannot_be_dialled_is_no_parent(record):
    async with world(6, record=lambda peer: record if peer == "n0" else direct(peer)) as (_, _, nodes):
        await ask_all(nodes[1:])
        assert (await ask(nodes[0])).parents
        answers = await ask_all(nodes[1:])
        assert all("n0" not in answer.parents for answer in answers.values())


@on_fake_clock
async def test_the_owners_limit_and_the_reported_uplinks_decide_which_nodes_are_parents():
    shown = {"n0": 50.0 * MB, "n1": 50.0 * MB}
    async with world(8, uplinks=lambda: shown) as (_, planner, nodes):
        for node in nodes[1:]:
            await ask(node, uplink=100_000 if node.peer_id != "n1" else None)
        await ask(nodes[0], uplink=100_000)
        assert {up for ups in planner.plan.parents.values() for up in ups} <= {"c", "n1"}


async def later(nodes: list[Peer]) -> None:
    """Wait until the next plan, with the reports of the meantime, is made."""
    await anyio.sleep(PLAN_SETTLE_SECONDS)
    await ask_all(nodes)


@pytest.mark.parametrize("peer", ["c", "n0"])
@on_fake_clock
async def test_a_lower_estimate_is_accepted_in_steps_and_a_higher_one_at_once(peer):
    shown = {peer: 20.0 * MB, "n1": 2.0 * MB}
    async with world(2, uplinks=lambda: shown, uplink=None) as (_, planner, nodes):
        await ask_all(nodes)
        await later(nodes)
        assert planner.uplinks[peer] == 20 * MB
        assert peer in {up for ups in planner.plan.parents.values() for up in ups}
        for step in (1, 2):
            shown[peer] = MB / step
            await later(nodes)
            await later(nodes)
            assert planner.uplinks[peer] == pytest.approx(20 * MB * ESTIMATE_FADE**step)


@on_fake_clock
async def test_a_node_with_few_children_keeps_its_estimate_when_it_shows_little():
    shown = {"n0": 40.0 * MB}
    async with world(2, uplinks=lambda: shown) as (_, planner, nodes):
        await ask_all(nodes)
        await later(nodes)
        assert sorted(planner.plan.parents.values()) == [("c",), ("n0",)]
        shown["n0"] = 9.0 * MB
        await later(nodes)
        assert planner.uplinks["n0"] == 40 * MB


@on_fake_clock
async def test_the_plan_changes_when_an_uplink_or_a_latency_does_and_no_more_often_than_once_in_a_while():
    shown = {f"n{index}": 1.0 * MB for index in range(8)}
    async with world(8, uplinks=lambda: shown) as (_, planner, nodes):
        await later(nodes)
        await later(nodes)
        first = planner.plan
        shown.update({f"n{index}": 90.0 * MB for index in range(4)})
        await ask_all(nodes)
        assert planner.plan is first
        await later(nodes)
        second = planner.plan
        assert second.seconds < first.seconds
        await anyio.sleep(PLAN_SETTLE_SECONDS)
        for node in nodes:
            await ask(node, latency=5000)
        await later(nodes[:1])
        assert planner.plan.seconds > second.seconds + 2


@on_fake_clock
async def test_with_the_planner_disabled_every_plan_is_empty():
    async with world(3, enabled=False) as (_, _, nodes):
        assert {tuple(answer.parents) for answer in (await ask_all(nodes)).values()} == {()}


@on_fake_clock
async def test_an_invalid_request_gets_no_answer():
    async with world(1) as (_, _, nodes):
        for data in (b"\xc1", encode(PlanRequest(failed=["x" * 129]))):
            with pytest.raises(Unreachable):
                await nodes[0].request("c", PLAN.name, data, timeout=5)
