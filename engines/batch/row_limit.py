"""Choose the number of rows that an engine takes further at once. Pure; the caller measures.

A decode step reads all weights, whatever the number of rows: so more rows make more tokens per second, until arithmetic
or memory is the bound. Where that is differs between devices, and is found by trying.

Rules
1. It begins with `FIRST_ROWS` rows. Once `MEASURED_STEPS` steps with that many rows are measured, the number is
   doubled. A doubling that gained less than `LEAST_GAIN` in tokens per second is undone, and tried again after
   `RETRY_STEPS` full steps: another program may have disturbed it.
2. Never more than fit into memory (`fitting`), nor more than the owner allows (`most`).
3. After an out-of-memory it halves, and finds its number anew. It then stays below the number that did not fit, until
   `RETRY_STEPS` full steps have passed. Where they end in another one, they double: all rows lose their tokens each
   time, so rollouts longer than the steps between two of them would never end.
4. Each further halving halves these steps too: where another program had all the memory for a moment, one row would
   else be all that the device computes for thousands of steps.
"""

import statistics
from collections.abc import Mapping
from typing import Final, NamedTuple

FIRST_ROWS: Final = 16
MEASURED_STEPS: Final = 12
LEAST_GAIN: Final = 1.05
RETRY_STEPS: Final = 4096
OWNERS_MOST: Final = "ECHO2_ENGINE_ROWS"
"""The variable of an engine's environment that holds the owner's bound; absent: none."""
MEMORY_SHARE: Final = 0.6
"""The part of the memory at hand that rows may take: the rest is for prompts, a buffer that grows, and other
programs."""


class Memory(NamedTuple):
    """The memory of rows, bytes. `at_hand`: free memory, with the part that the rows take already. `token`: keys and
    values of one token. `row`: what a row takes beside its tokens."""

    at_hand: int
    token: int
    row: int

    def fitting(self, longest: int) -> int:
        """Return how many rows of at most `longest` tokens fit, at least 1."""
        return max(1, int(self.at_hand * MEMORY_SHARE) // max(1, self.token * longest + self.row))

    def longest(self) -> int:
        """Return how many tokens a row may have that fits as the only one."""
        return max(0, int(self.at_hand * MEMORY_SHARE) - self.row) // max(1, self.token)


def owners_most(environ: Mapping[str, str]) -> int | None:
    """Return the owner's bound that an engine's environment holds."""
    text = environ.get(OWNERS_MOST)
    return int(text) if text else None


class RowLimit:
    """Finds the number for one engine. `rows`: the number, before memory at hand is considered. `most`: the owner's
    bound; None: none."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self.rows = FIRST_ROWS if most is None else max(1, min(FIRST_ROWS, most))
        self._below: int | None = None
        """The least number that did not fit into memory."""
        self._fewer: tuple[int, float] | None = None
        """The number before, and its rows per second, while a higher one is being measured."""
        self._seconds: list[float] = []
        self._settled = False
        self._full, self._retry, self._halvings = 0, RETRY_STEPS, 0
        self._overflowed = False

    def on_step_duration(self, rows: int, seconds: float) -> None:
        """Take the duration of a step that only decoded. Steps of fewer rows than the present number say nothing."""
        if rows < self.rows:
            return
        self._full += 1
        if self._full >= max(1, self._retry >> max(0, self._halvings - 1)):
            self._below, self._halvings = None, 0
            self._measure(self.rows, None)
        if not self._settled:
            self._seconds.append(seconds)
            if len(self._seconds) == MEASURED_STEPS:
                self._decide()

    def out_of_memory(self, rows: int) -> None:
        """Halve after a step or a prompt with `rows` rows did not fit."""
        if self._below is None:  # the first, or one after a retry
            self._retry *= 2 if self._overflowed else 1
        self._overflowed = True
        self._below = max(2, min(rows, self._below or rows))
        self._halvings += self._below // 2 < self.rows
        self._measure(self._below // 2, None)

    def _decide(self) -> None:
        rate = self.rows / max(1e-9, statistics.median(self._seconds))
        if self._fewer is not None and rate < LEAST_GAIN * self._fewer[1]:
            self.rows, self._settled = self._fewer[0], True
            return
        more = 2 * self.rows if self._most is None else min(2 * self.rows, self._most)
        if more <= self.rows or (self._below is not None and more >= self._below):
            self._settled = True
        else:
            self._measure(more, (self.rows, rate))

    def _measure(self, rows: int, fewer: tuple[int, float] | None) -> None:
        self.rows, self._fewer = rows, fewer
        self._seconds, self._settled, self._full = [], False, 0
