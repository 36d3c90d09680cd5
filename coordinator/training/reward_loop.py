"""Reward verified groups whose task runs in an environment, and decide them.

    verified (group_visits.py) ─ put ─> each episode is scored ─> decided

Rules
1. The environment sees tokens only after T1 and T2: a completion comes from the run's policy, and costs a stranger the
   work of sampling it.
2. A group waits here without delaying others: as many episodes are scored at a time as its task's environment has
   workers. The episodes of a task are taken in the order in which their groups were verified, those of one group
   together: no worker is idle while an episode waits. Tasks do not wait for each other.
3. An episode that fails has no reward; the others of its group are scored and learned from all the same, as verdicts.py
   says. The log says why, and more than 5 % of episodes pause the run (pauses.py).
4. A restart loses nothing but time: groups that waited here are verified again (verdicts/waiting_groups.py, rule 6).
"""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from echo2.coordinator.environments.task_host import TaskHost
from echo2.coordinator.submissions.group_service import GroupService
from echo2.coordinator.verdicts.waiting_groups import Undecided
from echo2.coordinator.verification.verification import Verdict
from echo2.tasks.task import InvalidTranscript, Score, TaskFault, Transcript

log = structlog.get_logger("coordinator")


class _Group:
    """A group whose episodes are scored. `scores`: scores of each rollout, as far as there are. `left`: episodes that
    have not ended."""

    def __init__(self, undecided: Undecided, verdict: Verdict) -> None:
        self.undecided, self.verdict = undecided, verdict
        self.left = len(undecided.submission.rollouts)
        self.scores: dict[int, Score] = {}


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
        """`hosts`: hosts of the single tasks. `workers`: episodes of each task that are scored at a time. `clock`:
        seconds since the Unix epoch. `decided`: set after each verdict."""
        self._hosts, self._group_service = hosts, group_service
        self._workers, self._clock, self._decided = workers, clock, decided
        self._episodes: dict[str, asyncio.Queue[tuple[_Group, int]]] = {
            host.facts.name: asyncio.Queue() for host in hosts
        }
        """By task, (group, sample)."""

    def put(self, group: Undecided, verdict: Verdict) -> None:
        """Take a verified group."""
        self._group_service.leave_for_reward(group)
        verified = _Group(group, verdict)
        for number in range(verified.left):
            self._episodes[group.lease.task].put_nowait((verified, number))

    async def run(self) -> None:
        """Reward groups, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for host in self._hosts:
                for _ in range(self._workers):
                    tasks.create_task(self._reward_each(host))

    async def _reward_each(self, host: TaskHost) -> None:
        episodes = self._episodes[host.facts.name]
        while True:
            group, number = await episodes.get()
            self._group_service.begin_reward(group.undecided)
            await self._score(host, group, number)
            group.left -= 1
            if not group.left:
                scores = [group.scores.get(sample) for sample in range(len(group.undecided.submission.rollouts))]
                self._group_service.reward(group.undecided, scores)
                self._group_service.decide(group.undecided, group.verdict, int(self._clock() * 1000))
                self._decided.set()

    async def _score(self, host: TaskHost, group: _Group, number: int) -> None:
        """Score an episode of a group (rule 3)."""
        lease, rollout = group.undecided.lease, group.undecided.submission.rollouts[number]
        record = self._group_service.episodes.of(lease.task)
        transcript = Transcript(rollout.tokens, rollout.turns)
        try:
            group.scores[number] = await host.score("train", lease.index, transcript, lease.limit)
            record.note("")
        except (InvalidTranscript, TaskFault) as fault:
            record.note(str(fault) or "no reason given")
            log.warning(
                "episode failed",
                task=lease.task,
                lease=lease.id.hex(),
                index=lease.index,
                sample=number,
                reason=str(fault),
            )
