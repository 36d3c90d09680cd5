"""A coordinator with a real learner process, without nodes: the groups that it learns from are in run.sqlite."""

import asyncio
import random
import shutil
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from benchmarks.memory_network.transport import MemoryNetwork
from echo2.coordinator.daemon import Coordinator
from echo2.coordinator.database.database import Database
from echo2.coordinator.learner.ranks.launch import learner_process
from echo2.coordinator.run import setup
from echo2.coordinator.run.setup import Run
from echo2.coordinator.training.model_processes import LearnerChild, Models, restarts
from echo2.engines.process.supervisor import Supervisor
from echo2.p2p.network import Network
from echo2.p2p.peer.peer import Peer
from echo2.runtime.child import Child
from echo2.weights.store import Store
from tests.support.swarm import BigramScorer
from tests.support.tiny_learner import group, store


def run_with_groups(
    template: Path, folder: Path, groups: int, chance: random.Random, env: Mapping[str, str] | None = None
) -> Run:
    """Return a copy of a run, with groups of version 0 to learn from. `env`: variables with settings."""
    run = setup.load_run(shutil.copytree(template, folder), now=time.time_ns() // 1_000_000, env=env or {})
    store(run.folder.database, [group(chance, f"g{number}", 0) for number in range(groups)])
    return run


class LoneCoordinator:
    """A coordinator that runs. `child`: the learner."""

    def __init__(
        self, coordinator: Coordinator, database: Database, child: Supervisor[Child], life: "asyncio.Task[None]"
    ) -> None:
        self.coordinator, self.database, self.child, self._life = coordinator, database, child, life

    def step(self) -> int:
        """Return the learner's step; 0 before it is open."""
        assert not self._life.done(), self._life.exception()
        progress = self.coordinator.group_service.progress
        return progress.step if progress else 0

    def pid(self) -> int:
        """Return the learner's process id."""
        assert self.child.pid is not None
        return self.child.pid


@asynccontextmanager
async def lone_coordinator(run: Run, make: Callable[[], Child] = learner_process) -> AsyncIterator[LoneCoordinator]:
    """Run a coordinator over a run folder during the block; it has ended before its files are closed. `make`: returns
    a learner's process."""
    # A clock that runs a million times faster: every life was long, and no pause comes before the next.
    learner = LearnerChild(make, restarts(), clock=lambda: 1e6 * time.monotonic())
    async with AsyncExitStack() as stack:
        kept = stack.enter_context(Store(run.folder.store))
        database = stack.enter_context(Database.open(run.folder.database))
        stack.push_async_callback(learner.child.stop)
        network = Network.of(Peer(MemoryNetwork(0).transport(run.peer_id), seed=0))
        models = Models(learner, [BigramScorer()])
        coordinator = Coordinator(run, network, models, store=kept, database=database)
        life = asyncio.create_task(coordinator.run())
        try:
            yield LoneCoordinator(coordinator, database, learner.child, life)
        finally:
            life.cancel()
            await asyncio.gather(life, return_exceptions=True)
