"""Give the turns of a task that wait (step_service.py) to its environment, and write the answers down.

Rules
1. As many turns are answered at a time as the environment has workers. A turn whose episode stands in a process that
   is answering another keeps nobody waiting: the next turn is taken meanwhile. Its lease is charged from the moment at
   which a process first takes it: a turn that ends its process pays for the next try, too.
2. An episode stays open in the environment between its turns, until it is over or its lease has ended. After a
   restart it is begun anew, and taken through the turns that are written (coordinator/environments/environment.py,
   rule 3).
3. An episode that fails, or is lost with its process, ends there: the node is told that it is over, and its group is
   checked and paid, but not learned from. Once the group is accepted its reason is counted (episode_record.py).
4. Episodes of new keys begin in processes of their own, as far as there are several, while known keys play
   (step_queue.py), or have an episode open: tokens that a stranger made up end no process in which others' episodes
   are open.
5. An answer that is being computed is waited for, though its lease may end meanwhile: to take it back would end the
   process, and with it the episodes of others. It takes at most the time of one answer. Turns that wait go with their
   lease (step_service.py).
"""

import asyncio
from collections.abc import Callable

import structlog

from echo2.coordinator.environments.task_host import EpisodeLost, OpenEpisode, TaskHost, TurnAnswer
from echo2.coordinator.submissions.episode_record import LOST_REASON, EpisodeRecord
from echo2.coordinator.submissions.step_service import AskedStep, StepService
from echo2.tasks.task import TaskFault

ENDED_LEASE_POLL_SECONDS = 1.0
"""Seconds between two looks for leases that have ended."""

log = structlog.get_logger("coordinator")


class StepLoop:
    """The loop. `clock`: seconds since the Unix epoch."""

    def __init__(
        self,
        host: TaskHost,
        steps: StepService,
        episodes: EpisodeRecord,
        *,
        workers: int,
        clock: Callable[[], float],
    ) -> None:
        self._host, self._steps, self._record = host, steps, episodes
        self._workers, self._clock = workers, clock
        self._open: dict[tuple[bytes, int], OpenEpisode] = {}
        """By lease and sample."""
        self._of_known: set[tuple[bytes, int]] = set()
        """Those of keys that are not new (rule 4)."""

    async def run(self) -> None:
        """Answer turns, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look())
            for _ in range(self._workers):
                tasks.create_task(self._answer_each(tasks))

    async def _look(self) -> None:
        """Leave the episodes whose leases have ended."""
        while True:
            leases = {lease for lease, _ in self._open}
            ended = leases - self._steps.still_open(leases)
            for key in [key for key in self._open if key[0] in ended]:
                self._leave(key)
            await asyncio.sleep(ENDED_LEASE_POLL_SECONDS)

    async def _answer_each(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            asked = await self._steps.take(self._host.facts.name, self._clock)
            episode = self._open.get((asked.lease.id, asked.sample))
            if episode is not None and episode.waits:
                tasks.create_task(self._answer(asked))
            else:
                await self._answer(asked)

    async def _answer(self, asked: AskedStep) -> None:
        began, is_taken = self._clock(), False

        def begin() -> None:
            nonlocal began, is_taken
            if not is_taken:
                began, is_taken = self._clock(), True

        answer, reason = await self._reply(asked, begin)
        now = self._clock()
        if reason or answer is None or answer.given is None:
            if reason:
                self._record.note_undecided(asked.lease.id, reason)
            self._leave((asked.lease.id, asked.sample))
        self._steps.on_answer(asked, answer, now - began, int(now * 1000))

    def _begin(self, key: tuple[bytes, int], asked: AskedStep) -> None:
        lease, apart = asked.lease, asked.apart or (asked.is_new and bool(self._of_known))
        self._open[key] = self._host.episode("train", lease.index, asked.past, prompt=lease.prompt, apart=apart)
        if not asked.is_new:
            self._of_known.add(key)

    def _leave(self, key: tuple[bytes, int]) -> None:
        episode = self._open.pop(key, None)
        self._of_known.discard(key)
        if episode is not None:
            episode.leave()

    async def _reply(self, asked: AskedStep, begin: Callable[[], None]) -> tuple[TurnAnswer | None, str]:
        """Return the environment's answer, or None and why the episode has failed. `begin`: as of
        `OpenEpisode.reply`."""
        lease = asked.lease
        try:
            if self._steps.time_is_up(asked):
                raise TaskFault("the environment's time for this lease is used up", verified=True)
            key = lease.id, asked.sample
            if key not in self._open:
                self._begin(key, asked)
            answer = await self._open[key].reply(asked.sampled, last=asked.last, begin=begin)
            if answer.given is not None and not self._steps.fits(asked, len(answer.given)):
                raise TaskFault("its answer leaves no room in the model's context", verified=True)
        except TaskFault as fault:
            reason = str(fault) or "no reason given"
            log.warning(
                "episode failed",
                task=lease.task,
                lease=lease.id.hex(),
                index=lease.index,
                sample=asked.sample,
                reason=reason,
            )
            return None, LOST_REASON if isinstance(fault, EpisodeLost) else reason
        return answer, ""
