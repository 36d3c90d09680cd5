"""The plan of broadcasts in a whole run: nodes ask for it, meet their parents, and carry on when it leads nowhere."""

from pathlib import Path

import pytest

from tests.clock import run_fake
from tests.node.fake_coordinator import until
from tests.swarm import make_swarm, working


def test_nodes_follow_the_coordinators_plan_and_take_new_versions_from_their_parents(tmp_path: Path) -> None:
    async def main() -> None:
        swarm = make_swarm(tmp_path, steps=12)
        async with swarm.coordinating() as coordinator:
            nodes = [swarm.node(name) for name in ("alice", "bob", "carol")]
            async with working(*nodes):
                await until(
                    lambda: all(len(coordinator.feeding._nodes) == 3 and n.daemon.parents.parents for n in nodes)
                )
                await until(lambda: coordinator.painter.paint().phase == "finished", 600)
                plan = coordinator.feeding._planner.plan
                for node in nodes:
                    network = node.daemon._network
                    assert set(plan.parents[network.peer_id]) <= {*(await network.peers())}

    run_fake(main)


@pytest.mark.parametrize("enabled", [True, False])
def test_a_run_finishes_with_and_without_a_plan(tmp_path: Path, enabled: bool) -> None:
    async def main() -> None:
        swarm = make_swarm(tmp_path, steps=4)
        async with swarm.coordinating() as coordinator:
            coordinator.feeding._enabled = enabled
            nodes = [swarm.node(name) for name in ("alice", "bob")]
            async with working(*nodes):
                await until(lambda: coordinator.painter.paint().phase == "finished", 600)
                assert all(bool(node.daemon.parents.parents) == enabled for node in nodes)

    run_fake(main)
