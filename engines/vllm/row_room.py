"""How many rows vLLM has room for, from the memory that is free and the lengths that rows really have. Pure.

vLLM gives a row its memory block by block, and where none is left it drops a row and computes it again later. So the
worst case of each row need not be kept free: with a limit of 8,192 tokens and a mean of 2,500, that would leave two
thirds of a card's rows unused.

Rules
1. A row is expected to take as many tokens as rows did: those of the ended ones and of the rows under way, over the
   number that ended. Counting those under way keeps the short rows, which end first, from passing for all. Never more
   than the longest that a row may be, which also stands in while none has ended.
2. There is room for as many rows as memory holds of such, and for no further row that would not find its blocks free
   now.
"""

from collections import deque
from typing import Final

REMEMBERED_ROWS: Final = 256
"""Rows that ended last, by which the next ones are judged."""


class RowRoom:
    """`block`: tokens of a block of memory. `blocks`: their number. `most`: most rows at a time."""

    def __init__(self, block: int, blocks: int, most: int) -> None:
        self._block, self._blocks, self._most = block, blocks, most
        self._lengths: deque[int] = deque(maxlen=REMEMBERED_ROWS)

    def on_end(self, length: int) -> None:
        """Note a row that ended with so many tokens, prompt included."""
        self._lengths.append(length)

    def row_tokens(self, longest: int, free: int) -> int:
        """Return how many tokens a row is expected to take (rule 1). `free`: free blocks."""
        if not self._lengths:
            return longest
        under_way = (self._blocks - free) * self._block
        return min(longest, -(-(sum(self._lengths) + under_way) // len(self._lengths)))

    def limit(self, longest: int, running: int, free: int) -> int:
        """Return for how many rows there is room, at least 1 (rule 2). `running`: rows under way."""
        blocks = max(1, -(-self.row_tokens(longest, free) // self._block))
        return max(1, min(self._most, self._blocks // blocks, running + free // blocks))
