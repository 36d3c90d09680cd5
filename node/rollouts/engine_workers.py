"""The rollout loops of a node, one per engine, under one identity.

Rules
1. Each engine has a loop of its own (node/rollouts/worker.py): it asks for leases as its own rows become free. The
   bound on open leases is the node's, and so is the number that each request asks for; where the bound leaves fewer
   leases than engines want, those with more free rows ask first.
2. An engine that cannot work ends its own loop and loses the leases of its own groups: the next request gives them
   back. The loop begins again once the engine is back (engines.process.engine_fleet, rule 3).
3. A refusal that ends one loop for good ends the node, as it does with one engine.
4. Requests for leases, submissions and verdicts report the leases whose groups wait for a place, on whatever engine.
   Where the coordinator answers that some of them have ended, those that have not begun meanwhile are given up. The
   requests also give back the leases that came here and whose groups were given up, failed, or were lost with an
   earlier process, so that they do not stay open until they expire.
"""

import asyncio
import statistics
from collections.abc import Sequence

import structlog

from echo2.engines.engine import EngineUnusable
from echo2.engines.process.change_time import WorkFacts
from echo2.engines.process.engine_fleet import EngineFleet
from echo2.engines.process.versioned import VersionedEngine
from echo2.node.links.coordinator_client import CoordinatorClient, RequestRefused
from echo2.node.rollouts.lease_bound import LeaseBound
from echo2.node.rollouts.outbox_relay import OutboxRelay
from echo2.node.rollouts.served_groups import ServedGroups
from echo2.node.rollouts.worker import MOST_AT_ONCE, RolloutWorker
from echo2.node.run_state import NodeRunState
from echo2.p2p.errors import P2PError
from echo2.protocol.leases import LeaseReport
from echo2.protocol.methods import LEASE, SUBMIT, VERDICTS
from echo2.protocol.requests import Refusal

_log = structlog.get_logger("node")


class EngineWorkers:
    """All loops of a node. It offers what the daemon and its commands read of one: `done`, `refusals`, `working`,
    `blocked`."""

    def __init__(
        self,
        fleet: EngineFleet,
        workers: Sequence[RolloutWorker],
        coordinator_client: CoordinatorClient,
        outbox_relay: OutboxRelay,
        run_state: NodeRunState,
        served_groups: ServedGroups,
    ) -> None:
        """`workers`: one per engine of the fleet, in its order."""
        self._fleet, self._outbox_relay, self._run_state = fleet, outbox_relay, run_state
        self._served_groups, self._coordinator_client = served_groups, coordinator_client
        self.workers = list(workers)
        bound = LeaseBound()
        for worker in self.workers:
            worker.share(bound, self.workers)
        outbox_relay.on_sent = self._wake_workers
        coordinator_client.reporter = self

    @property
    def working(self) -> bool:
        """Whether groups are being generated."""
        return any(worker.working for worker in self.workers)

    @property
    def done(self) -> int:
        """Leases completed since the start."""
        return sum(worker.done for worker in self.workers)

    def work_facts(self) -> WorkFacts:
        """Return the work of the node. A group takes as long as on the engine where it takes longest, and a change
        costs what it costs the engines in the mean."""
        durations = [one for worker in self.workers if (one := worker.rate.usual_durations()) is not None]
        group, row = max(durations, default=(None, 0.0))
        changes = [cost for engine in self._fleet.engines if (cost := engine.change_cost.seconds()) is not None]
        return WorkFacts(
            self.working,
            all(worker.is_wanted for worker in self.workers),
            group,
            row,
            statistics.fmean(changes) if changes else None,
        )

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
            await self._run_state.unless_finishing(self._fleet.await_restart(engine, fault, failures))

    def report(self, method: str) -> LeaseReport | None:
        """Return what a request of this method reports of the open leases (rule 4)."""
        if method not in (LEASE.name, SUBMIT.name, VERDICTS.name):
            return None
        under_way = {lease for worker in self.workers for lease in worker.leases}
        waiting = [lease for worker in self.workers for lease in worker.waiting]
        lost = [lease for lease in self._outbox_relay.outbox.open_leases() if lease not in under_way]
        return LeaseReport(waiting=waiting[:MOST_AT_ONCE], returned=lost[:MOST_AT_ONCE])

    def on_report(self, report: LeaseReport, ended: Sequence[bytes]) -> None:
        """Forget the leases that were given back, and give up those that have ended and whose groups still wait."""
        self._outbox_relay.outbox.close_leases(report.returned)
        self._served_groups.forget(report.returned)
        for lease in ended:
            for worker in self.workers:
                worker.give_up(lease)

    async def give_back(self) -> None:
        """Give back the open leases while no group is under way, as far as the coordinator answers."""
        if self._outbox_relay.outbox.open_leases():
            try:
                await self._coordinator_client.call(VERDICTS, None)
            except (RequestRefused, P2PError) as error:
                _log.info("leases not given back", reason=str(error))

    async def give_back_late(self, number: int, until: int) -> None:
        """Give back the leases of an engine that rests, whose groups cannot be completed if work goes on at `until`,
        ms, at the earliest. `number`: the engine's in the fleet."""
        if late := self.workers[number].give_up_late(until):
            await asyncio.wait(late)
        report = self.report(VERDICTS.name)
        if report is not None and report.returned:
            await self.give_back()

    def _wake_workers(self) -> None:
        for worker in self.workers:
            worker.look()


def _first(group: BaseExceptionGroup[EngineUnusable]) -> EngineUnusable:
    """Return an error of a group that may hold groups."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
