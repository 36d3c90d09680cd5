"""Where the groups of a whole run spend their time, as its coordinator shows it."""

from pathlib import Path

import pytest

from benchmarks.memory_network.transport import Link
from echo2.coordinator.metrics.group_stages import MEANINGS
from echo2.coordinator.metrics.views import StagesView
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import InProcessEngine, until
from tests.support.swarm import make_swarm, step, working


@on_fake_clock
@pytest.mark.slow
async def test_a_run_takes_the_way_of_its_groups_apart(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path, link=Link(delay=0.05), batch_groups=4)
    swarm.learner.seconds, swarm.scorer.seconds = 4.0, 0.3
    node = swarm.node("node", engine=InProcessEngine(seconds=1.5, places=2))
    async with swarm.coordinating() as coordinator, working(node):
        await until(lambda: step(coordinator) >= 10, 600)
        view: StagesView = coordinator.view_builder.build().stages
    assert [part.name for part in view.parts] == list(MEANINGS)
    seconds = {part.name: part.seconds for part in view.parts}
    assert view.step_seconds == pytest.approx(4.0, abs=0.2)
    assert seconds["generated"] == pytest.approx(1.5, abs=0.1)
    assert 0.1 <= seconds["received"] <= 0.6, "two round trips of 100 ms, for the stream and for the request"
    assert seconds["judged"] >= 0.3
    assert view.whole is not None
    # When the node held version 0 is not known: it was published before the node came.
    assert view.whole.mean_steps == pytest.approx(sum(part.mean_steps or 0 for part in view.parts), abs=0.5)
