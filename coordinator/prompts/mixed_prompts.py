"""Prompts of several tasks, in the proportion of their weights.

Rules
1. The task of a position depends on the run's seed and the weights alone, on no state. So does the prompt, as a task's
   prompts follow each other in the task's own order (prompts.py), whichever tasks are beside it, or are chosen in it.
2. Positions come in blocks as long as the sum of the weights, divided by their greatest common divisor. In each block a
   task has as many positions as its weight; their order is shuffled anew in each block.
3. A prompt that is not posed yet holds up the prompts after it, of all tasks: another order would let the speed of an
   environment decide what is learned.
"""

import hashlib
from collections.abc import Sequence
from itertools import accumulate
from math import gcd
from typing import NamedTuple

from echo2.coordinator.prompts.prompts import Prompt, PromptPlace, PromptSource, shuffle_index


class MixedPlace(NamedTuple):
    """A position of a mix. `number`: number of its task. `position`: position in the task's own sequence."""

    number: int
    position: int


class TaskOrder:
    """The order of tasks (rules 1 and 2)."""

    def __init__(self, weights: Sequence[int], seed: int) -> None:
        """`weights`: weights of the tasks, each at least 1."""
        common = gcd(*weights)
        self._weights = [weight // common for weight in weights]
        self._starts = [0, *accumulate(self._weights)]
        self._seed = seed

    def place(self, position: int) -> MixedPlace:
        """Return the task at a position of the mix, and the position in its own sequence."""
        block, slot = divmod(position, self._starts[-1])
        slot = shuffle_index(slot, self._starts[-1], b"mix/%d/%d" % (self._seed, block))
        number = next(number for number, end in enumerate(self._starts[1:]) if slot < end)
        return MixedPlace(number, block * self._weights[number] + slot - self._starts[number])


class MixedPrompts:
    """A `PromptSource` over those of several tasks."""

    def __init__(self, sources: Sequence[PromptSource], weights: Sequence[int], seed: int) -> None:
        self._sources, self._order = list(sources), TaskOrder(weights, seed)

    def at(self, position: int, index: int | None = None) -> Prompt:
        """Return the prompt at a position, as `PromptSource.at` says."""
        number, place = self._order.place(position)
        return self._sources[number].at(place, index)

    def place(self, position: int) -> PromptPlace:
        """See `PromptSource.place`."""
        number, place = self._order.place(position)
        return self._sources[number].place(place)

    def expect(self, position: int, index: int) -> None:
        """See `PromptSource.expect`."""
        number, place = self._order.place(position)
        self._sources[number].expect(place, index)


def seed_of(seed: int, task: str) -> int:
    """Return the seed of a task's own order in a mix, so that two tasks of one size are not shuffled alike."""
    named = b"mix/%d/" % seed + task.encode()
    return int.from_bytes(hashlib.blake2b(named, digest_size=8).digest(), "big")
