"""Deal the rollouts of a step to the ranks. Pure.

Rules
1. Mini-batches are those of a learner of one rank; each is dealt by itself, so that every rank takes part in each
   update.
2. A group goes to one rank whole: no rollout is split, and a prompt is computed once. The groups go, the longest first,
   each to the rank with the fewest tokens so far (Graham's LPT rule, at most 4/3 of the least possible longest part).
   Of equal groups and ranks the first is taken: the same batch is always dealt in the same way.
3. A rank keeps the order in which the groups stand in the batch. One rank gets the batch as it stands.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

from echo2.coordinator.learner.batches.batch import Rows, TrainRow, shared, split


class MiniShare(NamedTuple):
    """A rank's part of a mini-batch, by group. `signal`: groups with signal. `flat`: those without, for the KL term."""

    signal: list[list[TrainRow]]
    flat: list[list[TrainRow]]


class Share(NamedTuple):
    """A rank's part of a step. `covers_flat`: whether the step covers groups without signal, on any rank. `tokens`,
    `rollouts`: rollouts of the whole batch. `ages`: one more than the greatest age of the batch."""

    minis: list[MiniShare]
    covers_flat: bool
    tokens: int
    rollouts: int
    ages: int

    @property
    def longest(self) -> int:
        """The tokens of its longest rollout, with the prompt."""
        groups = [group for mini in self.minis for part in mini for group in part]
        return max((len(row.tokens) for group in groups for row in group), default=0)


def shares(rows: Rows, minibatches: int, ranks: int = 1) -> list[Share]:
    """Return the part of each rank. `minibatches`: minibatches at most so many updates."""
    parts = [split(groups, minibatches) for groups in (rows.groups, rows.flat)]
    minis = [
        [MiniShare(*pair) for pair in zip(deal(signal, ranks), deal(flat, ranks), strict=True)]
        for signal, flat in zip_longest(*parts, fillvalue=[])
    ]
    ages = 1 + max((row.age for groups in (rows.groups, rows.flat) for group in groups for row in group), default=0)
    return [
        Share([mini[rank] for mini in minis], bool(rows.flat), rows.tokens, rows.rollouts, ages)
        for rank in range(ranks)
    ]  # fmt: skip


def deal(groups: Sequence[list[TrainRow]], ranks: int) -> list[list[list[TrainRow]]]:
    """Deal groups to ranks by their tokens (rule 2)."""
    sizes = [shared([group]) for group in groups]
    owner, loads = [0] * len(groups), [0] * ranks
    for number in sorted(range(len(groups)), key=lambda number: (-sizes[number], number)):
        owner[number] = loads.index(min(loads))
        loads[owner[number]] += sizes[number]
    return [[group for group, of in zip(groups, owner, strict=True) if of == rank] for rank in range(ranks)]
