"""The estimate of the coordinator's clock."""

from pathlib import Path

from p2p.memory.transport import MemoryNetwork
from tests.support.clock import run_fake
from tests.support.fake_coordinator import FakeCoordinator, make_node, until, wall
from tests.support.swarm import working


def test_a_clock_that_is_a_day_wrong_stops_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        async with coordinator.serving(network):
            await coordinator.publish(0)
            for number, hours in enumerate((-24, 24)):
                home, off = tmp_path / f"node{number}", hours * 3_600_000
                node = make_node(network, home, coordinator.invite(), local=lambda off=off: wall() + off)
                async with working(node):
                    await until(lambda n=node: n.daemon.outbox.counts().get("accepted", 0) >= 2)

    run_fake(main)
