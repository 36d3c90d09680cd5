"""A learner of two real ranks under a coordinator, of which one is killed again and again."""

import asyncio
import random
from pathlib import Path

import psutil
import pytest

from echo2.coordinator.learner.ranks.launch import RankLayout, learner_process
from tests.support.fake_coordinator import until
from tests.support.lone_coordinator import lone_coordinator, run_with_groups

pytestmark = pytest.mark.slow

KILLS, GROUPS = 4, 120
PATIENCE = 120.0


@pytest.mark.parametrize("share", [1.0, 1e-9])
async def test_a_run_goes_on_though_one_rank_after_the_other_is_killed(
    template: Path, tmp_path: Path, share: float
) -> None:
    """`share`: of the time for checkpoints; at the smaller one all steps but the first are in the journal."""
    chance = random.Random(5)
    env = {"ECHO2_COORD_LEARNER_CHECKPOINT_SHARE": str(share)}
    run = run_with_groups(template, tmp_path / "run", GROUPS, chance, env)
    async with lone_coordinator(run, lambda: learner_process(ranks=RankLayout(2))) as lone:
        steps_done = 0
        for number in range(KILLS):
            await until(lambda steps_done=steps_done: lone.step() > steps_done, PATIENCE)
            await asyncio.sleep(chance.uniform(0.0, 0.3))
            pid = lone.pid()
            ranks = psutil.Process(pid).children()
            ranks[number % 2].kill()
            await until(lambda pid=pid: lone.child.pid != pid, PATIENCE)
            steps_done = lone.step()  # the next step is one of new ranks
            assert psutil.wait_procs(ranks, timeout=20)[1] == [], "no rank outlives the others"
        await until(lambda: lone.step() > steps_done, PATIENCE)
        assert lone.database.value("SELECT count(*) FROM set_aside") == 0
        assert lone.coordinator.view_builder.build().trouble.paused is None
        assert lone.database.all("SELECT DISTINCT era FROM versions") == [(1,)], "no published step is undone"
