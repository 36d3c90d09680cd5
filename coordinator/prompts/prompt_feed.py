"""Prompts of an environment, posed ahead of their leases: a lease is written without waiting for a process.

Rules
1. `at` answers from memory. A prompt that is not there yet raises `PromptPending`, and is posed next.
2. While there are requests, the prompts of the next `PROMPTS_AHEAD` positions are posed too; where prompts are chosen,
   those that are chosen ahead (prompt_window.py).
3. At most `MOST_KEPT_PROMPTS` prompts are kept, those asked for last; a prompt is posed again where it was dropped.
"""

import asyncio
from collections import OrderedDict
from typing import Final

from echo2.coordinator.environments.task_host import TaskHost
from echo2.coordinator.prompts.prompts import Prompt, PromptOrder, PromptPending, PromptPlace, check_room
from echo2.tasks.task import TaskFault

PROMPTS_AHEAD: Final = 64
MOST_KEPT_PROMPTS: Final = 4 * PROMPTS_AHEAD


class PromptFeed:
    """A `PromptSource` over the train split of an environment's task. `run` must be running."""

    def __init__(self, host: TaskHost, *, seed: int, room: int | None = None, workers: int = 1) -> None:
        """The task must be open. `room`: the same as in `check_room`. `workers`: prompts that are posed at a time."""
        self._host, self._room, self._workers = host, room, workers
        self._task = host.facts
        self._order = PromptOrder(self._task.train, seed)
        self._posed: OrderedDict[int, list[int] | TaskFault] = OrderedDict()
        """By index, the prompt or the fault."""
        self._wanted: OrderedDict[int, None] = OrderedDict()
        """Indices to pose, in order."""
        self._asked = asyncio.Event()
        self._ahead = 0
        """The first position after those posed ahead (rule 2)."""

    def __len__(self) -> int:
        """Count the prompts in memory."""
        return len(self._posed)

    def at(self, position: int, index: int | None = None) -> Prompt:
        """Return the prompt at a position, as `PromptSource.at` says."""
        if index is None:
            index = self._order.index(position)
            for later in range(max(position, self._ahead), position + PROMPTS_AHEAD):
                self._want(self._order.index(later))
                self._ahead = later + 1
        self._want(index)
        answer = self._posed.get(index)
        if answer is None:
            self._wanted.move_to_end(index, last=False)
            raise PromptPending(f"prompt {index} of {self._task.name} is not posed yet")
        if isinstance(answer, TaskFault):
            raise answer
        return Prompt(self._task.name, self._task.version, index, answer)

    def place(self, position: int) -> PromptPlace:
        """See `PromptSource.place`."""
        return PromptPlace(self._task.name, self._task.version, self._order, position)

    def expect(self, position: int, index: int) -> None:
        """See `PromptSource.expect`: the prompt is posed."""
        self._want(index)

    async def run(self) -> None:
        """Pose the prompts that are asked for, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._workers):
                group.create_task(self._pose())

    def _want(self, index: int) -> None:
        if index in self._posed:
            self._posed.move_to_end(index)
        elif index not in self._wanted:
            self._wanted[index] = None
            self._asked.set()

    async def _pose(self) -> None:
        while True:
            while not self._wanted:
                self._asked.clear()
                await self._asked.wait()
            index, _ = self._wanted.popitem(last=False)
            if index in self._posed:
                continue
            self._posed[index] = await self._answer(index)
            while len(self._posed) > MOST_KEPT_PROMPTS:
                self._posed.popitem(last=False)

    async def _answer(self, index: int) -> list[int] | TaskFault:
        try:
            tokens = await self._host.prompt("train", index)
            check_room(self._task.name, index, tokens, self._room)
        except TaskFault as fault:
            return fault
        return tokens
