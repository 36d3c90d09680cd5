"""A run with a real learner, from its first step to its last."""

from pathlib import Path

import pytest

from tests.clock import run_fake
from tests.coordinator_learner.real_learner import coordinating, make_run
from tests.node.fake_coordinator import until


def test_the_age_of_a_group_is_the_same_in_the_buffer_the_metrics_and_the_history_and_0_on_policy(
    tmp_path: Path, model_folder: Path
) -> None:
    run = make_run(tmp_path / "run", model_folder, steps=4, staleness=2)

    async def main() -> None:
        async with coordinating(run) as coordinator:
            await until(lambda: coordinator.painter.paint().phase == "finished", 300)
            steps, histogram = coordinator.painter.paint().steps, coordinator.books.buffer.histogram
        assert len(steps) == 4
        assert steps[0].staleness == 0.0, "the first batch is of the base, from which the first step starts"
        assert [point.metrics["staleness_mean"] for point in steps] == [point.staleness for point in steps]
        assert "ess_age_0" in steps[0].metrics
        drawn = sum(age * groups for age, groups in enumerate(histogram))
        assert drawn == pytest.approx(sum(point.staleness * 2 for point in steps))

    run_fake(main)


def test_the_last_step_is_published_and_evaluated_where_versions_are_further_apart(
    tmp_path: Path, model_folder: Path
) -> None:
    run = make_run(tmp_path / "run", model_folder, steps=5, learner={"publish_every": 3})

    async def main() -> None:
        async with coordinating(run) as coordinator:
            await until(lambda: coordinator.painter.paint().phase == "finished", 300)
            state = coordinator.painter.paint()
        assert (state.step, state.version) == (5, 5)
        assert [row.version for row in state.versions] == [0, 3, 5]
        assert state.evaluations[-1].version == 5
        # The next life finds the course over, and the learner where it ended.
        async with coordinating(run) as coordinator:
            await until(lambda: coordinator.painter.paint().phase == "finished", 300)
            assert (coordinator.painter.paint().step, coordinator.painter.paint().version) == (5, 5)

    run_fake(main)
