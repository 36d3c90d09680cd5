"""The real learner process, killed repeatedly: the cost is the step in work, and no group."""

import asyncio
import os
import random
import shutil
import signal
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from coordinator.daemon import Coordinator
from coordinator.database import Database
from coordinator.learner.launch import learner_process
from coordinator.run import setup
from coordinator.training.model_processes import LearnerChild, Models, restarts
from engines.supervisor import Supervisor
from p2p.memory.transport import MemoryNetwork
from p2p.network import Network
from p2p.peer.peer import Peer
from tests.support.fake_coordinator import until
from tests.support.swarm import BigramScorer
from tests.support.tiny_learner import group, store
from weights.store import Store

pytestmark = pytest.mark.slow

KILLS, GROUPS = 20, 120
PATIENCE = 120.0


async def test_a_learner_killed_twenty_times_at_random_sets_nothing_aside(template: Path, tmp_path: Path) -> None:
    """Of three kills two come at any moment after the start, also before the first step; the third comes in the step
    after a completed one. So no batch fails three times in a row."""
    chance = random.Random(7)
    run = setup.load_run(shutil.copytree(template, tmp_path / "run"), now=time.time_ns() // 1_000_000, env={})
    store(run.folder.database, [group(chance, f"g{number}", 0) for number in range(GROUPS)])
    # A clock that runs a million times faster: every life was long, and no pause comes before the next.
    child = Supervisor(learner_process, restarts(), clock=lambda: 1e6 * time.monotonic())
    learner = LearnerChild(child)
    async with AsyncExitStack() as stack:
        kept = stack.enter_context(Store(run.folder.store))
        database = stack.enter_context(Database.open(run.folder.database))
        stack.push_async_callback(child.stop)
        network = Network.of(Peer(MemoryNetwork(0).transport(run.peer_id), seed=0))
        coordinator = Coordinator(run, network, Models(learner, BigramScorer()), store=kept, database=database)
        life = asyncio.create_task(coordinator.run())

        def step() -> int:
            assert not life.done(), life.exception()
            return coordinator.group_service.progress.step if coordinator.group_service.progress else 0

        steps_done = 0
        for number in range(KILLS):
            await until(lambda: step() >= 0 and child.pid is not None, PATIENCE)
            if number % 3 == 2:
                await until(lambda steps_done=steps_done: step() > steps_done, PATIENCE)
            await asyncio.sleep(chance.uniform(0.0, 0.3 if number % 3 == 2 else 4.0))
            steps_done, pid = step(), child.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await until(lambda pid=pid: child.pid != pid, PATIENCE)
        await until(lambda: step() > steps_done, PATIENCE)
        assert database.value("SELECT count(*) FROM set_aside") == 0
        assert coordinator.view_builder.build().trouble.paused is None
        drawn = database.value("SELECT count(*) FROM temp.drawn")
        assert drawn >= 2 * steps_done > 0
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
