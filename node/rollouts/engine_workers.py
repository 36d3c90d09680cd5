"""The rollout loops of a node, one per engine, under one identity.

Rules
1. Each engine has a loop of its own (node/rollouts/worker.py): it asks for leases as its own rows become free. The
   bound on open leases is the node's; where it leaves fewer leases than engines want, those with more free rows ask
   first.
2. An engine that cannot work ends its own loop and loses the leases of its own groups: these expire. The loop begins
   again once the engine is back (engines.engine_fleet, rule 3).
3. A refusal that ends one loop for good ends the node, as it does with one engine.
"""

import asyncio
from collections.abc import Sequence

from engines.engine import EngineUnusable
from engines.engine_fleet import EngineFleet
from engines.versioned import VersionedEngine
from node.rollouts.lease_bound import LeaseBound
from node.rollouts.outbox_relay import OutboxRelay
from node.rollouts.worker import RolloutWorker
from node.run_state import NodeRunState
from protocol.requests import Refusal


class EngineWorkers:
    """All loops of a node. It offers what the daemon and its commands read of one: `done`, `refusals`, `working`,
    `blocked`."""

    def __init__(
        self, fleet: EngineFleet, workers: Sequence[RolloutWorker], outbox_relay: OutboxRelay, run_state: NodeRunState
    ) -> None:
        """`workers`: one per engine of the fleet, in its order."""
        self._fleet, self._run_state = fleet, run_state
        self.workers = list(workers)
        bound = LeaseBound()
        for worker in self.workers:
            worker.share(bound, self.workers)
        outbox_relay.on_sent = self._sent

    @property
    def working(self) -> bool:
        """Whether groups are being generated."""
        return any(worker.working for worker in self.workers)

    @property
    def done(self) -> int:
        """Leases completed since the start."""
        return sum(worker.done for worker in self.workers)

    @property
    def refusals(self) -> list[Refusal]:
        """The last refusals of each loop."""
        return [refusal for worker in self.workers for refusal in worker.refusals]

    @property
    def blocked(self) -> str:
        """The one reason that blocks work now; empty while groups are under way."""
        return "" if self.working else self.workers[self._fleet.engines.index(self._fleet.first)].blocked

    @blocked.setter
    def blocked(self, sentence: str) -> None:
        for worker in self.workers:
            worker.blocked = sentence

    async def run(self) -> None:
        """Work until the owner or the run finishes. Raises a group of `RefusedByRun`, `EngineUnusable`."""
        if len(self.workers) == 1:
            return await self.workers[0].run()
        async with asyncio.TaskGroup() as loops:
            for engine, worker in zip(self._fleet.engines, self.workers, strict=True):
                loops.create_task(self._keep(engine, worker))

    async def _keep(self, engine: VersionedEngine, worker: RolloutWorker) -> None:
        """Run a loop, again whenever its engine is back (rule 2)."""
        failures = 0
        while not self._run_state.finishing:
            done, fault = worker.done, EngineUnusable("")
            try:
                return await worker.run()
            except* EngineUnusable as group:
                fault = _first(group)
            failures = failures + 1 if worker.done == done else 1
            await self._run_state.unless_finishing(self._fleet.fallen(engine, fault, failures))

    def _sent(self) -> None:
        for worker in self.workers:
            worker.look()


def _first(group: BaseExceptionGroup[EngineUnusable]) -> EngineUnusable:
    """Return an error of a group that may hold groups."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
