"""Reward verified groups whose task runs in an environment, and decide them.

    verified (scoring_loop.py) ─ put ─> each episode is scored ─> decided

Rules
1. The environment sees tokens only after T1 and T2: a completion comes from the run's policy, and costs a stranger the
   work of sampling it.
2. A group waits here without delaying others: as many episodes are scored at a time as its task's environment has
   workers. Groups of a task are taken in the order in which they were verified; tasks do not wait for each other.
3. An episode that fails leaves its group without rewards. The group is accepted and paid under the code `task-score`,
   and is not learned from; the log says why, and more than 5 % of episodes pause the run (pauses.py).
4. A restart loses nothing but time: groups that waited here are verified again (rollouts/waiting_groups.py, rule 6).
"""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from coordinator.environments.task_host import TaskHost
from coordinator.rollouts.group_service import GroupService
from coordinator.rollouts.verification import Verdict
from coordinator.rollouts.waiting_groups import Undecided
from tasks.task import InvalidTranscript, Score, TaskFault, Transcript

log = structlog.get_logger("coordinator")


class Rewarding:
    """The groups that wait for their rewards."""

    def __init__(
        self,
        hosts: Sequence[TaskHost],
        group_service: GroupService,
        *,
        workers: int,
        clock: Callable[[], float],
        decided: asyncio.Event,
    ) -> None:
        """`hosts`: of the single tasks. `workers`: groups of each task that are scored at a time. `clock`: seconds
        since the Unix epoch. `decided`: set after each verdict."""
        self._hosts, self._group_service = hosts, group_service
        self._workers, self._clock, self._decided = workers, clock, decided
        self._verified: dict[str, asyncio.Queue[tuple[Undecided, Verdict]]] = {
            host.facts.name: asyncio.Queue() for host in hosts
        }

    def put(self, group: Undecided, verdict: Verdict) -> None:
        """Take a verified group."""
        self._group_service.leave_for_reward(group)
        self._verified[group.lease.task].put_nowait((group, verdict))

    async def run(self) -> None:
        """Reward groups, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for host in self._hosts:
                for _ in range(self._workers):
                    tasks.create_task(self._reward_each(host))

    async def _reward_each(self, host: TaskHost) -> None:
        verified = self._verified[host.facts.name]
        while True:
            group, verdict = await verified.get()
            self._group_service.reward(group, await self._scores(host, group))
            self._group_service.decide(group, verdict, int(self._clock() * 1000))
            self._decided.set()

    async def _scores(self, host: TaskHost, group: Undecided) -> list[Score]:
        """Return the scores of a group; none if an episode fails (rule 3)."""
        lease, scores = group.lease, list[Score]()
        episodes = self._group_service.episodes.of(lease.task)
        for number, rollout in enumerate(group.submission.rollouts):
            transcript = Transcript(rollout.tokens, rollout.turns)
            try:
                scores.append(await host.score(lease.split, lease.index, transcript, lease.limit))
                episodes.note("")
            except (InvalidTranscript, TaskFault) as fault:
                episodes.note(str(fault) or "no reason given")
                log.warning(
                    "episode failed",
                    task=lease.task,
                    lease=lease.id.hex(),
                    index=lease.index,
                    sample=number,
                    reason=str(fault),
                )
                return []
        return scores
