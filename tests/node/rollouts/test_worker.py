"""The rollout loop: crashes, refusals, a full outbox."""

from pathlib import Path

import anyio

from p2p.memory.transport import MemoryNetwork
from protocol.requests import Refusal
from tests.support.clock import run_fake
from tests.support.fake_coordinator import FakeCoordinator, make_node, until
from tests.support.swarm import working


def test_an_engine_that_crashes_generates_the_same_lease_again(tmp_path: Path) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        async with coordinator.serving(network):
            await coordinator.publish(0)
            node = make_node(network, tmp_path / "node", coordinator.invite())
            async with working(node):
                await until(lambda: node.daemon.rollouts.done >= 2)
                node.engine.crashes = 3
                await until(lambda: node.daemon.engine.deaths == 3 and node.engine.crashes == 0)
                await until(lambda: node.daemon.outbox.counts().get("accepted", 0) >= 5)
                assert "refused" not in node.daemon.outbox.counts()
                unworked = set(coordinator.leases) - set(coordinator.submitted)
                assert len(unworked) <= 2

    run_fake(main)


def test_a_refused_node_waits_for_as_long_as_stated_and_a_new_version_ends_the_wait(tmp_path: Path) -> None:
    """At commit 439044d the node asks again after at most 30 s."""

    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        coordinator.refusals["lease"] = Refusal(code="no-room", sentence="enough", retry_after=600_000)
        async with coordinator.serving(network):
            await coordinator.publish(0)
            async with working(make_node(network, tmp_path / "node", coordinator.invite())):
                await until(lambda: coordinator.asked.get("lease"))
                await anyio.sleep(590)
                assert coordinator.asked["lease"] == 1
                await coordinator.publish(1)
                await anyio.sleep(5)
                assert coordinator.asked["lease"] == 2
                await anyio.sleep(725)
                assert coordinator.asked["lease"] == 3

    run_fake(main)


def test_a_new_version_does_not_end_the_wait_for_a_busy_coordinator(tmp_path: Path) -> None:
    """Otherwise every new version would make all refused nodes ask a busy coordinator at the same time."""

    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        coordinator.refusals["lease"] = Refusal(code="busy", sentence="a crowd", retry_after=100_000)
        async with coordinator.serving(network):
            await coordinator.publish(0)
            node = make_node(network, tmp_path / "node", coordinator.invite())
            async with working(node):
                await until(lambda: coordinator.asked.get("lease"))
                await coordinator.publish(1)
                await until(
                    lambda: node.daemon.follower.current is not None and node.daemon.follower.current.version == 1
                )
                await anyio.sleep(60)
                assert coordinator.asked["lease"] == 1
                await anyio.sleep(60)
                assert coordinator.asked["lease"] == 2
                del coordinator.refusals["lease"]
                await until(lambda: node.daemon.rollouts.done, 130)

    run_fake(main)


def test_a_full_outbox_stops_new_work_and_is_reported(tmp_path: Path) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        coordinator.refusals["submit"] = Refusal(code="paused", sentence="not now", retry_after=500)
        async with coordinator.serving(network):
            await coordinator.publish(0)
            node = make_node(network, tmp_path / "node", coordinator.invite(), outbox=3)
            async with working(node):
                await until(lambda: "outbox is full" in node.daemon.rollouts.blocked)
                await anyio.sleep(30)
                assert node.daemon.outbox.waiting() == 3
                del coordinator.refusals["submit"]
                await until(lambda: node.daemon.outbox.counts().get("accepted", 0) >= 6)

    run_fake(main)
