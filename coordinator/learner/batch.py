"""Divide a batch of groups into micro-batches.

Rules
1. Only sampled tokens are targets: tokens of the prompt and of the environment carry no loss.
2. A rollout is never split. A micro-batch has at most `budget` tokens, unless a single rollout is longer.
3. The rollouts of a group stay together with one copy of their prompt, unless the group is longer than `budget`.
4. Groups without signal are left out, which saves their forward pass.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coordinator.learner import advantages
from coordinator.learner.batch_groups import BadBatch, Floats, Tokens, TrainBatch, TrainGroup, TrainSample


class TrainRow(NamedTuple):
    """One rollout. `tokens`: prompt and transcript. `targets`: positions that were sampled. `age`: learner/age.py.
    `prompt`: the number of first tokens that the rollouts of its group share."""

    tokens: Tokens
    targets: NDArray[np.int64]
    behaviour: Floats
    advantage: float
    age: int
    prompt: int


class MicroBatch(NamedTuple):
    """Rollouts for one forward pass, by group. All else has one entry per sampled token, [n]: `row` (number of its
    rollout) and `position` (in its prompt and transcript, of the state that predicts it) int64, `target` int64,
    `behaviour` and `advantage` float32, `age` int64."""

    groups: list[list[TrainRow]]
    row: Tensor
    position: Tensor
    target: Tensor
    behaviour: Tensor
    advantage: Tensor
    age: Tensor

    def to(self, device: torch.device) -> "MicroBatch":
        """Copy all tensors to `device`."""
        return MicroBatch(self.groups, *(tensor.to(device) for tensor in self[1:]))

    @property
    def rows(self) -> list[TrainRow]:
        """The rollouts, in the order of their numbers."""
        return [row for group in self.groups for row in group]


class Rows(NamedTuple):
    """The rollouts of a batch. `groups`: the rows of each group with signal. `zero_variance`: number of groups without
    signal."""

    groups: list[list[TrainRow]]
    zero_variance: int


def rows(batch: TrainBatch, kind: str) -> Rows:
    """Return the rollouts with their advantages, by group. `kind`: of the advantages. Raises BadBatch for an
    inconsistent sample."""
    scored = advantages.compute([[sample.reward for sample in group.samples] for group in batch.groups], kind)
    kept = [
        [_row(group, sample, value, batch.age(group)) for sample, value in zip(group.samples, values, strict=True)]
        for group, values in zip(batch.groups, scored.values, strict=True)
        if any(values)
    ]
    return Rows(kept, scored.zero_variance)


def _row(group: TrainGroup, sample: TrainSample, advantage: float, age: int) -> TrainRow:
    mask = np.repeat(np.arange(len(sample.turns)) % 2 == 0, sample.turns)
    start = len(group.prompt)
    targets = start + np.flatnonzero(mask)
    if len(mask) != len(sample.tokens):
        raise BadBatch(f"group {group.id.hex()}: turn lengths do not add up to the tokens")
    if len(targets) != len(sample.behaviour):
        raise BadBatch(f"group {group.id.hex()}: {len(sample.behaviour)} log-probabilities for {len(targets)} tokens")
    if not start:
        raise BadBatch(f"group {group.id.hex()}: the prompt is empty, so nothing predicts the first token")
    return TrainRow(np.concatenate([group.prompt, sample.tokens]), targets, sample.behaviour, advantage, age, start)


Groups = Sequence[Sequence[TrainRow]]
Cost = Callable[[Groups], int]
"""The tokens that a forward pass computes for these groups."""


def shared(groups: Groups) -> int:
    """Count tokens, the prompt of a group once."""
    return sum(group[0].prompt + sum(len(row.tokens) - row.prompt for row in group) for group in groups if group)


def padded(groups: Groups) -> int:
    """Count tokens, each rollout with its prompt and filled up to the longest."""
    lengths = [len(row.tokens) for group in groups for row in group]
    return len(lengths) * max(lengths, default=0)


def split(groups: Sequence[list[TrainRow]], minibatches: int) -> list[list[list[TrainRow]]]:
    """Split the groups into at most `minibatches` mini-batches of groups, none empty. They are assigned round robin, so
    that a batch sorted by age gives every mini-batch a similar mix of ages."""
    return [part for start in range(minibatches) if (part := list(groups[start::minibatches]))]


def pack(mini: Groups, budget: int, cost: Cost = shared) -> Iterator[MicroBatch]:
    """Yield micro-batches of at most `budget` tokens (rules 2 and 3). Groups, and the rollouts of each, are sorted by
    length, to keep filling small where there is any."""
    part: list[list[TrainRow]] = []
    for group in _parts(mini, budget, cost):
        if part and cost([*part, group]) > budget:
            yield _micro_batch(part)
            part = []
        part.append(group)
    if part:
        yield _micro_batch(part)


def _parts(mini: Groups, budget: int, cost: Cost) -> Iterator[list[TrainRow]]:
    """Yield the groups, those that exceed `budget` in parts."""
    ordered = [sorted(group, key=lambda row: len(row.tokens)) for group in mini if group]
    for group in sorted(ordered, key=lambda group: len(group[-1].tokens)):
        part: list[TrainRow] = []
        for row in group:
            if part and cost([[*part, row]]) > budget:
                yield part
                part = []
            part.append(row)
        yield part


def _micro_batch(groups: list[list[TrainRow]]) -> MicroBatch:
    part = [row for group in groups for row in group]
    counts = torch.tensor([len(row.targets) for row in part])
    index = torch.repeat_interleave(torch.arange(len(part)), counts)
    return MicroBatch(
        groups=groups,
        row=index,
        position=torch.from_numpy(np.concatenate([row.targets for row in part])) - 1,
        target=torch.from_numpy(np.concatenate([row.tokens[row.targets] for row in part])).long(),
        behaviour=torch.from_numpy(np.concatenate([row.behaviour for row in part])),
        advantage=torch.tensor([row.advantage for row in part], dtype=torch.float32)[index],
        age=torch.tensor([row.age for row in part])[index],
    )
