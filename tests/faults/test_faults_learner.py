"""The real learner process, killed repeatedly: the cost is the step in work, and no group."""

import os
import random
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.fake_coordinator import until
from tests.support.lone_coordinator import lone_coordinator, run_with_groups

pytestmark = pytest.mark.slow

KILLS, GROUPS = 20, 128
PATIENCE = 120.0


@pytest.mark.parametrize("share", [1.0, 0.05, 1e-9])
async def test_a_learner_killed_twenty_times_at_random_sets_nothing_aside_and_undoes_nothing(
    template: Path, tmp_path: Path, share: float
) -> None:
    """Of two kills one comes at any moment after the start, also while journalled steps are made again; the other comes
    in the step after a completed one. So no batch fails three times in a row, and no replay twice. `share`: of the time
    for checkpoints."""
    chance = random.Random(7)
    env = {"ECHO2_COORD_LEARNER_CHECKPOINT_SHARE": str(share)}
    run = run_with_groups(template, tmp_path / "run", GROUPS, chance, env)
    async with lone_coordinator(run) as lone:
        steps_done = 0
        for number in range(KILLS):
            await until(lambda: lone.step() >= 0 and lone.child.pid is not None, PATIENCE)
            if number % 2:
                await until(lambda steps_done=steps_done: lone.step() > steps_done, PATIENCE)
            with suppress(TimeoutError):  # two steps at most, for the groups have an end
                seconds = chance.uniform(0.0, 0.3 if number % 2 else 6.0)
                await until(lambda steps_done=steps_done: lone.step() > steps_done + 1, seconds)
            pid = lone.pid()
            os.kill(pid, signal.SIGKILL)
            await until(lambda pid=pid: lone.child.pid != pid, PATIENCE)
            steps_done = lone.step()
        await until(lambda: lone.step() > steps_done, PATIENCE)
        assert lone.database.value("SELECT count(*) FROM set_aside") == 0
        assert lone.coordinator.view_builder.build().trouble.paused is None
        drawn = lone.database.value("SELECT count(*) FROM temp.drawn")
        assert drawn >= 2 * steps_done > 0
        assert lone.database.all("SELECT DISTINCT era FROM versions") == [(1,)], "no published step is undone"
