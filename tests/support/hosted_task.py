"""A stand-in for an environment in the tests' process: a task that no node has, which can fail and be stopped."""

import asyncio

from coordinator.environments.task_host import LocalTask, TaskFacts
from protocol.task_kinds import SINGLE
from tasks.arithmetic import REVERSE
from tasks.task import Score, Split, TaskFault, Tokenizer, Transcript


class HostedTask:
    """A `TaskHost` of the kind single. `going`: cleared, no episode is scored. `failing`: every n-th episode fails; 0:
    none does. `scored`: episodes."""

    def __init__(self, text: Tokenizer, *, failing: int = 0) -> None:
        self._task = LocalTask(REVERSE, text)
        self.failing = failing
        self.going = asyncio.Event()
        self.going.set()
        self.scored = 0

    @property
    def facts(self) -> TaskFacts:
        return self._task.facts._replace(name="riddle", version=3, kind=SINGLE)

    async def prompt(self, split: Split, index: int) -> list[int]:
        return await self._task.prompt(split, index)

    async def score(self, split: Split, index: int, transcript: Transcript, limit: int) -> Score:
        if split == "train":
            await self.going.wait()
            self.scored += 1
            if self.failing and self.scored % self.failing == 0:
                raise TaskFault("score raised ZeroDivisionError: division by zero", verified=True)
        return await self._task.score(split, index, transcript, limit)
