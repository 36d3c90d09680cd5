"""The delivery times of versions, acknowledged by the nodes: the shipped coordinator and nodes under a fake clock.

The coordinator's figures are compared with times that the test takes from the loop's clock.
"""

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from benchmarks.memory_network.transport import Link
from echo2.coordinator.metrics.broadcast_stats import BroadcastStats
from echo2.coordinator.metrics.views import BroadcastView, DeliveryView
from echo2.p2p.network import FetchReport
from echo2.protocol.requests import Refusal
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import Node, until
from tests.support.small_run import SmallRun
from tests.support.swarm import Swarm, accepted, make_swarm, wall, working

WAY = 0.05
"""Latency of the network in one direction, seconds."""
LATER = 3 * WAY + 0.02
"""Seconds by which an acknowledged time may be too long: a stream is opened, and the message sent, perhaps beside other
requests."""


class Witness:
    """A record, by the loop's clock, of when each version was announced, complete at a node, and loaded by the node."""

    def __init__(self, swarm: Swarm, nodes: list[Node]) -> None:
        assert swarm.coordinator is not None
        self.announced: dict[int, float] = {}
        self.complete: dict[tuple[str, int], float] = {}
        self.applied: dict[tuple[str, int], float] = {}
        heads = swarm.coordinator.publisher.heads
        known = heads.on_announce

        def announcing(era: int, version: int, now: int) -> None:
            self.announced.setdefault(version, anyio.current_time())
            known(era, version, now)

        heads.on_announce = announcing
        for node in nodes:
            self._watch(node)

    def _watch(self, node: Node) -> None:
        acknowledger = node.daemon.acknowledger
        fetched, applied, last = acknowledger.on_payload, acknowledger.on_version_load, 0.0

        def watched(payload_hash: bytes, told: FetchReport) -> None:
            nonlocal last
            last = anyio.current_time()
            fetched(payload_hash, told)

        def holding(era: int, version: int, payloads: Collection[bytes]) -> None:
            self.complete[node.peer_id, version] = last
            self.applied[node.peer_id, version] = anyio.current_time()
            applied(era, version, payloads)

        acknowledger.on_payload, acknowledger.on_version_load = watched, holding  # type: ignore[method-assign]


def view(swarm: Swarm) -> BroadcastView:
    return swarm.coordinator.view_builder.build().broadcast


def takes(swarm: Swarm, version: int) -> Mapping[str, DeliveryView]:
    return swarm.coordinator.group_service.broadcasts.deliveries[1, version]


@asynccontextmanager
async def story(folder: Path, *, skew: int = 0) -> AsyncIterator[tuple[Swarm, list[Node], Witness]]:
    """Run three paid nodes over connections of 200 kB/s. `skew`: milliseconds by which the first node's clock is
    ahead."""
    swarm = make_swarm(folder, link=Link(delay=WAY, bandwidth=200_000))
    async with swarm.coordinating():
        nodes = [swarm.node(name) for name in ("alice", "bob", "carol")]
        nodes[0].daemon.context.clock.local = lambda: int(wall() * 1000) + skew
        witness = Witness(swarm, nodes)
        async with working(*nodes):
            await until(lambda: all(accepted(node) >= 2 for node in nodes), 600)
            yield swarm, nodes, witness


async def acknowledged(swarm: Swarm, nodes: list[Node]) -> int:
    """Wait for a new version that all these nodes acknowledge; return its number."""
    group_service = swarm.coordinator.group_service
    after = max(version for _, version in group_service.broadcasts.deliveries)

    def versions() -> list[int]:
        who = {node.peer_id for node in nodes}
        return [v for (_, v), told in group_service.broadcasts.deliveries.items() if v > after and who <= set(told)]

    await until(versions, 120)
    return versions()[0]


@pytest.mark.parametrize("skew", [0, 400_000, -400_000], ids=["clocks right", "a clock fast", "a clock slow"])
@pytest.mark.slow_but("a clock fast")
@on_fake_clock
async def test_every_node_acknowledges_a_version_and_the_times_are_those_that_passed(tmp_path: Path, skew: int) -> None:
    async with story(tmp_path, skew=skew) as (swarm, nodes, witness):
        version = await acknowledged(swarm, nodes)
        sent = witness.announced[version]
        told = takes(swarm, version)
        for node in nodes:
            take = told[node.peer_id]
            assert -0.002 <= take.complete - (witness.complete[node.peer_id, version] - sent) <= LATER
            assert -0.002 <= take.applied - (witness.applied[node.peer_id, version] - sent) <= LATER
            assert WAY <= take.heard <= take.complete <= take.applied
            assert take.counted
            assert {feed.peer for feed in take.feeds} <= {swarm.run.peer_id, *(n.peer_id for n in nodes)}
            assert all(0 <= feed.began <= feed.ended <= take.complete for feed in take.feeds)
        assert sum(feed.nbytes for take in told.values() for feed in take.feeds) > 0
        shown = view(swarm)
        slowest = max(take.complete for one in swarm.coordinator.group_service.broadcasts.deliveries.values()  # type: ignore[union-attr]
                      for take in one.values() if take.counted)  # fmt: skip
        assert shown.slowest == slowest
        assert shown.median is not None
        assert shown.median < slowest + 1e-9


@pytest.mark.slow
@on_fake_clock
async def test_the_capacity_model_works_with_what_the_nodes_acknowledged(tmp_path: Path) -> None:
    async with story(tmp_path) as (swarm, nodes, _):
        await acknowledged(swarm, nodes)
        group_service, picture = swarm.coordinator.group_service, swarm.coordinator.view_builder.build()
        reach = group_service.broadcasts.reach()
        assert reach is not None
        assert picture.broadcast.applied == reach
        with_it = picture.capacity.turnaround_seconds
        group_service.broadcasts = BroadcastStats()
        without = swarm.coordinator.view_builder.build().capacity.turnaround_seconds
        assert with_it is not None
        assert without is not None
        assert with_it == pytest.approx(without + reach)


@pytest.mark.slow
@on_fake_clock
async def test_a_frozen_node_changes_no_other_nodes_figures(tmp_path: Path) -> None:
    async with story(tmp_path) as (swarm, nodes, witness):
        frozen, *others = nodes
        swarm.network.freeze(frozen.peer_id)
        version = await acknowledged(swarm, others)
        told = takes(swarm, version)
        assert frozen.peer_id not in told
        sent = witness.announced[version]
        for node in others:
            assert -0.002 <= told[node.peer_id].complete - (witness.complete[node.peer_id, version] - sent) <= LATER
        swarm.network.thaw(frozen.peer_id)
        await acknowledged(swarm, nodes)


@pytest.mark.slow
@on_fake_clock
async def test_a_node_that_joins_late_does_not_look_like_a_slow_broadcast(tmp_path: Path) -> None:
    async with story(tmp_path) as (swarm, nodes, _):
        await acknowledged(swarm, nodes)
        swarm.learner.seconds = 300.0  # the step after the next takes so long: no newer version meanwhile
        late = swarm.node("late")
        await anyio.sleep(100)
        before = view(swarm)
        async with working(late):
            await until(lambda: late.daemon.engine.current, 120)
            await anyio.sleep(5)
            assert late.daemon.engine.current.version == before.version  # type: ignore[union-attr]
            assert view(swarm) == before
        swarm.nodes.remove(late)


@on_fake_clock
async def test_a_coordinator_that_refuses_acknowledgements_costs_a_node_no_work(small_run: SmallRun) -> None:
    coordinator = small_run.coordinator
    coordinator.refusals["acknowledge"] = Refusal(code="unknown-method", sentence="There is no such method.")
    async with small_run.working() as node:
        await until(lambda: accepted(node) >= 2)
        await coordinator.publish(1)
        await until(lambda: node.daemon.engine.current.version == 1)  # type: ignore[union-attr]
        await anyio.sleep(5)
        assert coordinator.asked["acknowledge"] == 2
        assert coordinator.asked["hello"] == 1
        assert node.coordinator_client.peer == coordinator.peer_id


@on_fake_clock
@pytest.mark.slow
async def test_a_program_that_does_not_know_the_method_is_asked_a_few_times_and_stays_the_coordinator(
    small_run: SmallRun,
) -> None:
    coordinator = small_run.coordinator
    async with small_run.serving(published=False) as peer:
        del peer.handlers.methods["acknowledge"]
        await coordinator.publish(0)
        node = small_run.node()
        async with working(node):
            await until(lambda: accepted(node) >= 5)
            await anyio.sleep(60)
            assert coordinator.asked["hello"] == 1


@on_fake_clock
async def test_an_acknowledgement_delivered_late_states_the_true_times(
    small_run: SmallRun,
) -> None:
    coordinator = small_run.coordinator
    async with small_run.serving():
        node = small_run.node()
        tell, lost = node.coordinator_client.tell, 3

        async def lossy(method: str, make: Callable[[], object]) -> None:
            nonlocal lost
            if lost:
                lost -= 1
                from echo2.p2p.errors import Unreachable

                raise Unreachable("lost")
            await tell(method, make)  # type: ignore[arg-type]

        node.coordinator_client.tell = lossy  # type: ignore[method-assign,assignment]
        async with working(node):
            await until(lambda: coordinator.acknowledged, 120)
            ((_, message),) = coordinator.acknowledged
            assert message.version == 0
            assert message.applied == pytest.approx(10_500, abs=200)  # 0.5 + 2 + 8 s of waiting
            assert message.heard >= message.complete >= message.applied
            (taken,) = message.taken
            assert taken.payload_hash == coordinator.edges[0][1].payload_hash
            assert [(one.peer, one.nbytes) for one in taken.senders] == [
                (coordinator.peer_id, coordinator.edges[0][1].length)
            ]
