"""A learner of two real ranks under a coordinator, of which one is killed again and again."""

import asyncio
import random
import shutil
import time
from contextlib import AsyncExitStack
from pathlib import Path

import psutil
import pytest

from coordinator.daemon import Coordinator
from coordinator.database import Database
from coordinator.learner.launch import RankLayout, learner_process
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

KILLS, GROUPS = 4, 120
PATIENCE = 120.0


async def test_a_run_goes_on_though_one_rank_after_the_other_is_killed(template: Path, tmp_path: Path) -> None:
    chance = random.Random(5)
    run = setup.load_run(shutil.copytree(template, tmp_path / "run"), now=time.time_ns() // 1_000_000, env={})
    store(run.folder.database, [group(chance, f"g{number}", 0) for number in range(GROUPS)])
    child = Supervisor(
        lambda: learner_process(ranks=RankLayout(2)), restarts(), clock=lambda: 1e6 * time.monotonic()
    )  # fmt: skip
    async with AsyncExitStack() as stack:
        kept = stack.enter_context(Store(run.folder.store))
        database = stack.enter_context(Database.open(run.folder.database))
        stack.push_async_callback(child.stop)
        network = Network.of(Peer(MemoryNetwork(0).transport(run.peer_id), seed=0))
        models = Models(LearnerChild(child), BigramScorer())
        coordinator = Coordinator(run, network, models, store=kept, database=database)
        life = asyncio.create_task(coordinator.run())

        def step() -> int:
            assert not life.done(), life.exception()
            return coordinator.group_service.progress.step if coordinator.group_service.progress else 0

        steps_done = 0
        for number in range(KILLS):
            await until(lambda steps_done=steps_done: step() > steps_done, PATIENCE)
            await asyncio.sleep(chance.uniform(0.0, 0.3))
            steps_done, pid = step(), child.pid
            assert pid is not None
            ranks = psutil.Process(pid).children()
            ranks[number % 2].kill()
            await until(lambda pid=pid: child.pid != pid, PATIENCE)
            assert psutil.wait_procs(ranks, timeout=20)[1] == [], "no rank outlives the others"
        await until(lambda: step() > steps_done, PATIENCE)
        assert database.value("SELECT count(*) FROM set_aside") == 0
        assert coordinator.view_builder.build().trouble.paused is None
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
