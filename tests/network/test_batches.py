"""The message of the main process to its learner about a batch, in a whole run in one process."""

from pathlib import Path

import msgspec

from tests.support.clock import run_fake
from tests.support.fake_coordinator import until
from tests.support.swarm import finished, make_swarm, working


def test_a_batch_names_its_groups_and_carries_none_of_their_tokens(tmp_path: Path) -> None:
    async def main() -> None:
        swarm = make_swarm(tmp_path, steps=3, group_size=8, limit=24)
        async with swarm.coordinating() as coordinator, working(swarm.node("alice"), swarm.node("bob")):
            await until(lambda: finished(coordinator), 600)
            tokens = coordinator.group_service.database.value("SELECT sum(tokens) FROM verdicts WHERE trainable = 1")
            steps = coordinator.view_builder.build().steps
        assert tokens > 8 * 2 * 3 * 8, "the rollouts are long enough to be seen in a batch"
        for batch in swarm.learner.batches:
            nbytes = len(msgspec.msgpack.encode(msgspec.structs.replace(batch, hyper=None)))
            assert nbytes <= 100 + 2 * 20, f"{nbytes} bytes for a batch of 2 groups"
        assert all(0 <= point.reward <= 1 and 0 <= point.success <= 1 for point in steps)

    run_fake(main)
