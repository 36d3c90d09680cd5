"""Define what a step needs of the other ranks: the processes that train one model together (docs/training.md).

Every rank calls the same functions in the same order, and each call returns the same value on all of them.
"""

from typing import Final, Protocol

from torch import Tensor


class Ranks(Protocol):
    """The ranks of a learner. `rank`: this one's number. `count`: their number."""

    @property
    def rank(self) -> int: ...

    @property
    def count(self) -> int: ...

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of the ranks' tensors, which all have the same shape."""

    def most(self, value: int) -> int:
        """Return the largest of the ranks' values."""

    def gather_by_rank(self, values: Tensor) -> list[Tensor]:
        """Return the ranks' tensors [n], by rank; n may differ."""


class OneRank:
    """A learner of one process: nothing is exchanged."""

    rank: Final = 0
    count: Final = 1

    def total(self, values: Tensor) -> Tensor:
        """See `Ranks`."""
        return values

    def most(self, value: int) -> int:
        """See `Ranks`."""
        return value

    def gather_by_rank(self, values: Tensor) -> list[Tensor]:
        """See `Ranks`."""
        return [values]


ONLY_RANK: Final = OneRank()
